// SPDX-License-Identifier: Apache-2.0
#include "gateway/completion_handler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gateway/deferred_handler.h"

namespace lamina::gateway {
namespace {

// What one log-probability with its text takes in an answer, about, and the id of a token.
constexpr size_t kLogprobBytes = 100;
constexpr size_t kIdBytes = 8;

size_t BytesOf(const std::vector<ShownToken>& tokens) {
  size_t bytes = 0;
  for (const ShownToken& token : tokens) {
    bytes += (1 + token.top.size()) * kLogprobBytes;
  }
  return bytes;
}

// What an answer in one piece takes, about.
template <typename Prompt>
size_t AnswerBytes(const std::vector<Prompt>& prompts, bool echo) {
  size_t bytes = 0;
  for (const Prompt& prompt : prompts) {
    const size_t of_prompt = BytesOf(prompt.echo_tokens) + prompt.ids.size() * kIdBytes +
                             (echo ? prompt.echo.size() : 0);
    for (const auto& choice : prompt.choices) {
      bytes += of_prompt + BytesOf(choice.tokens) + choice.ids.size() * kIdBytes +
               choice.parts.text.size() + choice.parts.reasoning.size();
      for (const CalledFunction& call : choice.parts.calls) {
        bytes += call.arguments.size();
      }
    }
  }
  return bytes;
}

}  // namespace

CompletionHandler::CompletionHandler(CompletionRequest request, CompletionHead head,
                                     std::shared_ptr<AnswerFormat> format, const Services& services,
                                     ResponseWriter& writer, DoneFunction done)
    : request_(std::move(request)),
      head_(head),
      format_(std::move(head), {.logprobs = request_.logprobs,
                                .alternatives = request_.alternatives(),
                                .as_ids = request_.tokens_as_ids}),
      other_format_(std::move(format)),
      backend_(services.backend),
      side_work_(services.side_work),
      writer_(&writer),
      metrics_(services.metrics),
      began_(std::chrono::steady_clock::now()),
      done_(std::move(done)),
      prompts_(request_.prompts.size()) {}

void CompletionHandler::Start() {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    prompts_[i].choices.resize(*request_.options.n);
    for (Choice& choice : prompts_[i].choices) {
      choice.parts = ChoiceParts(request_);
    }
    if (const auto* text = std::get_if<std::string>(&request_.prompts[i]); text != nullptr) {
      prompts_[i].echo = *text;
    }
  }
  if (request_.echo || request_.prompt_logprobs.has_value()) {
    Prepare();
  } else {
    Generate();
  }
}

// --- The prompt's own tokens in the answer (completion_handler_prompts.cc brings them) ---

// Each choice of a stream begins with its prompt. Until that is written only OnGone() and
// OnSilence() may come, which touch nothing that is shown.
void CompletionHandler::WriteEchoes() {
  side_work_.DoForAnswer(
      AnswerBytes(prompts_, /*echo=*/true),
      [self = shared_from_this()] {
        std::vector<std::string> members;
        for (Prompt& prompt : self->prompts_) {
          members.push_back(self->format_.TextMembers(
              prompt.echo, self->PromptTokens(prompt, self->request_.alternatives()),
              prompt.echo_offset));
          prompt.echo_tokens.clear();
        }
        return members;
      },
      [self = shared_from_this()](std::vector<std::string> members) {
        for (size_t i = 0; i < members.size(); ++i) {
          self->prompts_[i].echo_members = std::move(members[i]);
        }
        if (self->writer_ != nullptr) {
          self->Generate();
        }
      });
}

void CompletionHandler::FinishWithoutTokens() {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    for (uint32_t c = 0; c < request_.choices; ++c) {
      Choice& choice = prompts_[i].choices[c];
      choice.finish = client::FinishReason::kLength;
      if (request_.stream) {
        Begin(i, c);
        if (!prompts_[i].ids.empty()) {
          Send(format_.IdsEvent(IndexOf(i, c), {}, std::exchange(prompts_[i].ids, {}),
                                usage_of_events(), Counts()));
        }
        Send(format_.FinishEvent(IndexOf(i, c), choice.finish, /*called=*/false, usage_of_events(),
                                 Counts()));
      }
    }
  }
  Complete();
}

// The prompt's tokens with so many alternatives.
std::vector<ShownToken> CompletionHandler::PromptTokens(const Prompt& prompt,
                                                        uint32_t alternatives) const {
  std::vector<ShownToken> tokens = prompt.echo_tokens;
  for (ShownToken& token : tokens) {
    token.top.resize(std::min<size_t>(token.top.size(), alternatives));
  }
  return tokens;
}

// --- Generating ---

void CompletionHandler::Generate() {
  if (request_.no_tokens) {
    FinishWithoutTokens();
    return;
  }
  unfinished_ = prompts_.size();
  for (size_t i = 0; i < prompts_.size(); ++i) {
    client::GenerateOptions options = request_.options;
    options.prompt = request_.prompts[i];
    options.request_id = prompts_.size() == 1 ? head_.id : absl::StrCat(head_.id, "-", i);
    const auto self = shared_from_this();
    prompts_[i].generation = backend_.Generate(
        options, [self, i](const client::Chunk& chunk) { self->OnChunk(i, chunk); },
        [self, i](const absl::Status& status) { self->OnDone(i, status); });
    prompts_[i].generation->Next();
  }
}

void CompletionHandler::OnChunk(size_t index, const client::Chunk& chunk) {
  if (writer_ == nullptr) {
    return;
  }
  Prompt& prompt = prompts_[index];
  prompt.tokens = std::max(prompt.tokens, chunk.prompt_tokens);
  prompt.cached = std::max(prompt.cached, chunk.usage.cached_tokens);
  prompt.left_out += chunk.usage.left_out_tokens;
  if (!chunk.prompt.empty()) {
    prompt.ids = chunk.prompt;
  }
  const bool has_output = !chunk.tokens.empty() || !chunk.text.empty() ||
                          chunk.finish_reason != client::FinishReason::kNotFinished;
  if (has_output && chunk.index < prompt.choices.size()) {
    Choice& choice = prompt.choices[chunk.index];
    choice.completion_tokens += static_cast<uint32_t>(chunk.tokens.size());
    choice.finish = chunk.finish_reason;
    choice.stop = chunk.stop;
    if (request_.return_ids) {
      for (const client::TokenOutput& token : chunk.tokens) {
        choice.ids.push_back(token.token);
      }
    }
    if (request_.stream) {
      Stream(index, chunk);
    } else {
      Gather(choice, chunk);
    }
  }
  if (writer_->pending_bytes() > kPendingBytesMax) {
    prompt.paused = true;
  } else {
    prompt.generation->Next();
  }
}

void CompletionHandler::OnDrained() {
  if (writer_ == nullptr) {
    return;
  }
  for (Prompt& prompt : prompts_) {
    if (std::exchange(prompt.paused, false)) {
      prompt.generation->Next();
    }
  }
}

void CompletionHandler::OnDone(size_t index, const absl::Status& status) {
  prompts_[index].done = true;
  if (writer_ == nullptr) {
    return;
  }
  if (!status.ok()) {
    Fail(status);
  } else if (--unfinished_ == 0) {
    Complete();
  }
}

// Plain completions show the token that ends too, as vLLM does: clients count on an entry for each
// token that was generated. It is no part of the text.
std::vector<ShownToken> CompletionHandler::Shown(const client::Chunk& chunk) const {
  std::vector<ShownToken> shown;
  if (request_.options.logprobs.has_value()) {
    for (const client::TokenOutput& token : chunk.tokens) {
      if (!token.ends || !request_.chat) {
        shown.push_back(
            {.token = token.token, .text = token.text, .logprob = token.logprob, .top = token.top});
      }
    }
  }
  return shown;
}

void CompletionHandler::Gather(Choice& choice, const client::Chunk& chunk) const {
  for (const AnswerPart& part : choice.parts.Read(chunk)) {
    choice.parts.Take(part);
  }
  std::vector<ShownToken> tokens = Shown(chunk);
  choice.tokens.insert(choice.tokens.end(), std::make_move_iterator(tokens.begin()),
                       std::make_move_iterator(tokens.end()));
}

// --- Events ---

CompletionFormat::Usage CompletionHandler::usage_of_events() const {
  return request_.continuous_usage ? CompletionFormat::Usage::kCounts
         : request_.include_usage  ? CompletionFormat::Usage::kNull
                                   : CompletionFormat::Usage::kAbsent;
}

// The first event of a choice: a chat's role, or an echoed prompt.
void CompletionHandler::Begin(size_t index, uint32_t c) {
  Choice& choice = prompts_[index].choices[c];
  if (std::exchange(choice.begun, true)) {
    return;
  }
  if (other_format_ != nullptr) {
    Send(other_format_->Begin(Counts()));
  } else if (request_.chat) {
    Send(format_.RoleEvent(IndexOf(index, c), usage_of_events(), Counts()));
  } else if (request_.echo) {
    const Prompt& prompt = prompts_[index];
    Send(format_.TextEvent(IndexOf(index, c), prompt.echo_members, usage_of_events(), Counts()));
    choice.characters = CountCharacters(prompt.echo);
  }
}

void CompletionHandler::Stream(size_t index, const client::Chunk& chunk) {
  Choice& choice = prompts_[index].choices[chunk.index];
  const uint32_t shown_index = IndexOf(index, chunk.index);
  Begin(index, chunk.index);
  choice.times.Observe(metrics_, began_, std::chrono::steady_clock::now(), chunk.tokens.size());
  if (other_format_ != nullptr) {
    SendInOtherFormat(choice, chunk);
    return;
  }
  const std::vector<ShownToken> tokens = Shown(chunk);
  if (request_.return_ids && (!choice.ids.empty() || !prompts_[index].ids.empty())) {
    Send(format_.IdsEvent(shown_index, std::exchange(choice.ids, {}),
                          std::exchange(prompts_[index].ids, {}), usage_of_events(), Counts()));
  }
  // Text may lag behind tokens while a character or a stop string is open.
  if (choice.parts.mixed()) {
    SendParts(shown_index, choice, chunk, tokens);
  } else if (!chunk.text.empty() || !tokens.empty()) {
    Send(format_.TextEvent(shown_index, chunk.text, tokens, choice.characters, usage_of_events(),
                           Counts()));
    for (const ShownToken& token : tokens) {
      choice.characters += CountCharacters(token.text);
    }
  }
  if (chunk.finish_reason != client::FinishReason::kNotFinished) {
    Send(format_.FinishEvent(shown_index, chunk.finish_reason, choice.parts.called(),
                             usage_of_events(), Counts()));
  }
}

// What ends the answer is sent in Complete(), with the counts.
void CompletionHandler::SendInOtherFormat(Choice& choice, const client::Chunk& chunk) {
  for (const AnswerPart& part : choice.parts.Read(chunk)) {
    if (part.kind == AnswerPart::Kind::kCall) {
      choice.parts.Take(part);
    }
    Send(other_format_->Part(part, choice.parts.call_id()));
  }
}

// Log-probabilities go with the first of the chunk's parts.
void CompletionHandler::SendParts(uint32_t index, Choice& choice, const client::Chunk& chunk,
                                  const std::vector<ShownToken>& tokens) {
  std::vector<AnswerPart> parts = choice.parts.Read(chunk);
  if (parts.empty() && !tokens.empty()) {
    parts.push_back({AnswerPart::Kind::kText, ""});
  }
  std::vector<ShownToken> shown = tokens;
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kCall) {
      choice.parts.Take(part);
    }
    const size_t calls = choice.parts.calls.size();
    Send(format_.PartEvent(index, part, calls > 0 ? calls - 1 : 0, choice.parts.call_id(), shown,
                           usage_of_events(), Counts()));
    shown.clear();
  }
}

// What answers of every form have, since only some have a fingerprint.
HttpHeaders CompletionHandler::LossyHeader() const {
  return head_.lossy.empty() ? HttpHeaders() : HttpHeaders{{"x-lamina-lossy", head_.lossy}};
}

void CompletionHandler::Send(const std::string& event) {
  if (!std::exchange(streaming_, true)) {
    writer_->StartStream(LossyHeader());
  }
  writer_->Write(event);
}

void CompletionHandler::OnSilence() {
  if (request_.stream && writer_ != nullptr) {
    Send(kKeepAliveComment);
  }
}

// --- The end ---

TokenCounts CompletionHandler::Counts() const {
  TokenCounts counts;
  for (const Prompt& prompt : prompts_) {
    counts.prompt += prompt.tokens;
    counts.cached += prompt.cached;
    counts.completion += prompt.left_out;
    for (const Choice& choice : prompt.choices) {
      counts.completion += choice.completion_tokens;
      if (request_.thinks()) {
        counts.reasoning = counts.reasoning.value_or(0) + choice.parts.reasoning_tokens;
      }
    }
  }
  return counts;
}

FinishedChoice CompletionHandler::Finished(Prompt& prompt, Choice& choice, uint32_t index) const {
  FinishedChoice finished = {.index = index,
                             .reasoning = std::move(choice.parts.reasoning),
                             .finish = choice.finish,
                             .stop = choice.stop,
                             .called = choice.parts.called()};
  finished.calls = std::move(choice.parts.calls);
  if (request_.return_ids) {
    finished.ids = std::move(choice.ids);
    finished.prompt_ids = prompt.ids;
  }
  finished.text = request_.echo ? prompt.echo + choice.parts.text : std::move(choice.parts.text);
  if (request_.echo && request_.logprobs) {
    finished.tokens = PromptTokens(prompt, request_.alternatives());
    finished.text_offset = prompt.echo_offset;
  }
  finished.tokens.insert(finished.tokens.end(), std::make_move_iterator(choice.tokens.begin()),
                         std::make_move_iterator(choice.tokens.end()));
  if (request_.prompt_logprobs.has_value() && !(request_.chat && index > 0)) {
    finished.prompt_tokens = PromptTokens(prompt, *request_.prompt_logprobs);
  }
  return finished;
}

std::vector<FinishedChoice> CompletionHandler::FinishedChoices() {
  std::vector<FinishedChoice> finished;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    std::vector<Choice>& choices = prompts_[i].choices;
    for (uint32_t c = 0; c < request_.choices; ++c) {
      finished.push_back(Finished(prompts_[i], choices[c], IndexOf(i, c)));
    }
    prompts_[i].echo_tokens.clear();  // Freed where the answer is written, which takes its time.
  }
  return finished;
}

void CompletionHandler::Complete() {
  const TokenCounts counts = Counts();
  if (other_format_ != nullptr && request_.stream) {
    const Choice& choice = prompts_[0].choices[0];
    Begin(0, 0);
    Send(other_format_->End({choice.finish, !choice.parts.calls.empty(), choice.stop}, counts));
    End(absl::OkStatus());
    return;
  }
  if (request_.stream) {
    if (request_.include_usage) {
      Send(format_.UsageEvent(counts));
    }
    Send(kDoneEvent);
    End(absl::OkStatus());
    return;
  }
  CompleteWhole();
}

// Until the answer is written only OnGone() may come, which touches nothing that is shown.
void CompletionHandler::CompleteWhole() {
  side_work_.DoForAnswer(
      AnswerBytes(prompts_, request_.echo),
      [self = shared_from_this(), counts = Counts()] {
        const std::vector<FinishedChoice> choices = self->FinishedChoices();
        return self->other_format_ != nullptr ? self->other_format_->Whole(choices[0], counts)
                                              : self->format_.Whole(choices, counts);
      },
      [self = shared_from_this()](std::string body) {
        ResponseWriter* writer = self->writer_;
        if (writer == nullptr) {
          return;
        }
        self->End(absl::OkStatus());
        writer->Respond({.body = std::move(body), .headers = self->LossyHeader()});
      });
}

void CompletionHandler::Fail(const absl::Status& error) {
  const absl::Status status = request_.names.InClientsWords(NameForm(error, request_.form_field));
  HttpResponse response = ErrorResponse(status);
  if (other_format_ != nullptr) {
    response.body = other_format_->ErrorBody(ToApiError(status));
  }
  if (streaming_) {
    metrics_.CountBrokenStream(response.error_code);
    Send(other_format_ != nullptr ? other_format_->ErrorEvent(ToApiError(status))
                                  : ErrorEvent(response.body) + kDoneEvent);
    End(status);
    return;
  }
  ResponseWriter* writer = writer_;
  End(status);
  writer->Respond(std::move(response));
}

// After this nothing more is written but the last of what the caller has begun.
void CompletionHandler::End(const absl::Status& status) {
  ResponseWriter* writer = std::exchange(writer_, nullptr);
  CancelAll();
  if (status.ok()) {
    metrics_.completion_time.Observe(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count());
  }
  done_({.status = status, .tokens = Counts()});
  if (streaming_) {
    writer->EndStream();
  }
}

void CompletionHandler::OnGone() {
  if (std::exchange(writer_, nullptr) == nullptr) {
    return;
  }
  CancelAll();
  done_({.status = absl::CancelledError("the client went away"), .tokens = Counts()});
}

void CompletionHandler::CancelAll() {
  for (Prompt& prompt : prompts_) {
    if (prompt.cancel_score != nullptr) {
      prompt.cancel_score();
    }
    prompt.cancel_score = nullptr;
    if (prompt.generation != nullptr && !prompt.done) {
      prompt.generation->Cancel();
    }
    prompt.generation = nullptr;
  }
}

}  // namespace lamina::gateway
