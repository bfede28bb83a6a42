// SPDX-License-Identifier: Apache-2.0
#include "coordinator/request_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sampling_params.h"
#include "common/status_macros.h"
#include "coordinator/beam_request.h"

namespace lamina::coordinator {
namespace {

constexpr size_t kStopsMax = 16;
// They travel with every plan that begins a sequence, which must stay below what nodes receive.
constexpr size_t kStopTokensMax = 128;
constexpr size_t kStopBytesMax = 256;
constexpr size_t kRequestIdBytesMax = 256;
// A score's answer is one message, of which clients take so many bytes. A token has its number, its
// log-probability and its text in it, and so has each of its alternatives.
constexpr uint64_t kScoreBytesMax = uint64_t{64} << 20;
constexpr uint64_t kScoredTokenBytes = 20;

absl::Status CheckStops(const GenerateSpec& spec) {
  if (spec.stop.size() > kStopsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stop has ", spec.stop.size(), " strings; at most ", kStopsMax, " are allowed"));
  }
  for (const std::string& stop : spec.stop) {
    if (stop.empty() || stop.size() > kStopBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("a stop string has ", stop.size(),
                                                     " bytes; it must have 1 to ", kStopBytesMax));
    }
  }
  if (spec.stop_tokens.size() > kStopTokensMax) {
    return absl::InvalidArgumentError(absl::StrCat("stop_tokens has ", spec.stop_tokens.size(),
                                                   " tokens; at most ", kStopTokensMax,
                                                   " are allowed"));
  }
  return absl::OkStatus();
}

// Before the work is done, and not when its answer cannot be sent.
absl::Status CheckScoreBytes(const GenerateSpec& spec) {
  const auto alternatives = static_cast<uint64_t>(std::max(spec.sampling.logprobs, 0));
  const uint64_t bytes = spec.prompt.size() * kScoredTokenBytes * (1 + alternatives);
  return bytes <= kScoreBytesMax
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(
                   "the scores of ", spec.prompt.size(), " tokens with ", alternatives,
                   " alternatives each (logprobs) would take some ", bytes, " bytes; at most ",
                   kScoreBytesMax, " are sent. Ask for fewer alternatives, or score parts"));
}

absl::Status CheckToken(TokenId token, TokenId vocabulary) {
  return token >= 0 && token < vocabulary
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(
                   "token ", token, " is not in the vocabulary of ", vocabulary, " tokens"));
}

absl::Status CheckSampledTokens(const SamplingParams& sampling, TokenId vocabulary) {
  const auto check = [vocabulary](const char* field, TokenId token) {
    return token >= 0 && token < vocabulary
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(field, ": token ", token,
                                                         " is not in the vocabulary of ",
                                                         vocabulary, " tokens"));
  };
  for (const auto& [token, bias] : sampling.logit_bias) {
    LAMINA_RETURN_IF_ERROR(check("logit_bias", token));
  }
  for (const TokenId token : sampling.allowed_tokens) {
    LAMINA_RETURN_IF_ERROR(check("allowed_tokens", token));
  }
  return absl::OkStatus();
}

// Whether a request was refused for what it asks, which this cluster may not serve, or because the
// queue is full: it did not fail.
bool IsRefusal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
         absl::IsResourceExhausted(status);
}

bool IsStopToken(const GenerateSpec& spec, TokenId token) {
  return std::find(spec.stop_tokens.begin(), spec.stop_tokens.end(), token) !=
         spec.stop_tokens.end();
}

// Where nothing but ends is allowed, something else must be while ends may not come.
absl::Status CheckAllowedEnds(const GenerateSpec& spec, absl::Span<const TokenId> end_tokens) {
  const std::vector<TokenId>& allowed = spec.sampling.allowed_tokens;
  const auto ends = [&](TokenId token) {
    const bool own = std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
    return IsStopToken(spec, token) || (own && !spec.ignore_eos);
  };
  if (spec.min_tokens > 0 && !allowed.empty() &&
      std::all_of(allowed.begin(), allowed.end(), ends)) {
    return absl::InvalidArgumentError(
        "allowed_tokens are all tokens that end the answer, which min_tokens does not let come; "
        "allow another one");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRequestId(absl::string_view request_id) {
  return request_id.size() <= kRequestIdBytesMax
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("request_id has ", request_id.size(),
                                                       " bytes; at most ", kRequestIdBytesMax,
                                                       " are allowed"));
}

RequestTable::RequestTable(const model::Tokenizer& tokenizer, const Clock& clock,
                           uint32_t sequence_tokens_max, uint32_t vocabulary)
    : tokenizer_(tokenizer),
      clock_(clock),
      sequence_tokens_max_(sequence_tokens_max),
      vocabulary_(static_cast<TokenId>(
          vocabulary == 0 ? tokenizer.vocabulary_size()
                          : std::min<size_t>(tokenizer.vocabulary_size(), vocabulary))) {}

absl::Status RequestTable::Check(const GenerateSpec& spec) const {
  LAMINA_RETURN_IF_ERROR(spec.sampling.Validate());
  LAMINA_RETURN_IF_ERROR(CheckStops(spec));
  if (spec.choices == 0 || spec.choices > kChoicesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("n is ", spec.choices, "; it must be in [1, ", kChoicesMax, "]"));
  }
  if (spec.beams.width > 0) {
    LAMINA_RETURN_IF_ERROR(CheckBeamRequest(spec));
  }
  LAMINA_RETURN_IF_ERROR(CheckRequestId(spec.request_id));
  if (spec.prompt.empty()) {
    return absl::InvalidArgumentError("the prompt is empty; send at least one token");
  }
  // One more token than the prompt must fit, unless nothing is generated.
  const size_t room = sequence_tokens_max_ - (spec.score ? 0 : 1);
  if (spec.prompt.size() > room) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", spec.prompt.size(), " tokens; at most ", room,
                     " fit: this model's maximum context length is ", sequence_tokens_max_,
                     " tokens (limits.sequence_tokens_max)"));
  }
  if (spec.score) {
    LAMINA_RETURN_IF_ERROR(CheckScoreBytes(spec));
  }
  for (const std::vector<TokenId>* list : {&spec.prompt, &spec.stop_tokens}) {
    for (const TokenId token : *list) {
      LAMINA_RETURN_IF_ERROR(CheckToken(token, vocabulary_));
    }
  }
  LAMINA_RETURN_IF_ERROR(CheckSampledTokens(spec.sampling, vocabulary_));
  LAMINA_RETURN_IF_ERROR(CheckAllowedEnds(spec, tokenizer_.end_tokens()));
  if (!spec.generated.empty()) {
    LAMINA_RETURN_IF_ERROR(CheckGenerated(spec));
  }
  if (!spec.request_id.empty() && ids_.contains(spec.request_id)) {
    return absl::AlreadyExistsError(absl::StrCat("request_id ", spec.request_id, " is in use"));
  }
  return absl::OkStatus();
}

// They were tokens of such a request, unless the model or its limits have changed since.
absl::Status RequestTable::CheckGenerated(const GenerateSpec& spec) const {
  if (spec.generated.size() != spec.choices || spec.begins_anew()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request of ", spec.choices, " choices cannot go on behind tokens of ",
                     spec.generated.size(), ", and no beam search or score goes on at all"));
  }
  for (const GeneratedChoice& choice : spec.generated) {
    const size_t tokens = spec.prompt.size() + choice.tokens.size();
    if (tokens > sequence_tokens_max_) {
      return absl::InvalidArgumentError(absl::StrCat("the request goes on behind ", tokens,
                                                     " tokens; at most ", sequence_tokens_max_,
                                                     " fit (limits.sequence_tokens_max)"));
    }
    for (const plan::SampledToken& token : choice.tokens) {
      LAMINA_RETURN_IF_ERROR(CheckToken(token.token, vocabulary_));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<core::SequenceRequest>> RequestTable::Admit(
    GenerateSpec spec, uint64_t key, std::shared_ptr<RequestSink> sink) {
  LAMINA_RETURN_IF_ERROR(Check(spec));
  Request request{.id = spec.request_id.empty() ? NewId() : spec.request_id,
                  .spec = std::move(spec),
                  .sink = std::move(sink),
                  .arrived = clock_.Now()};
  std::vector<core::SequenceRequest> sequences;
  for (uint32_t i = 0; i < request.spec.choices; ++i) {
    const plan::SequenceId id = next_sequence_++;
    request.choices.push_back({.sequence = id,
                               .decoder = model::StreamDecoder(
                                   tokenizer_, !request.spec.keep_special, request.spec.prompt),
                               .stops = StopMatcher(request.spec.stop, request.spec.include_stop),
                               .seed = request.spec.sampling.seed + i});
    places_[id] = {.key = key, .choice = i};
  }
  if (request.spec.beams.width > 0) {
    sequences.push_back(MakeSequence(request, 0));
    for (const Choice& choice : request.choices) {
      sequences[0].answers.push_back(choice.sequence);
    }
  } else {
    for (uint32_t i = 0; i < request.spec.choices; ++i) {
      sequences.push_back(MakeSequence(request, i));
    }
  }
  request.choices_left = request.spec.choices;
  ids_[request.id] = key;
  if (request.spec.followed_id.empty()) {
    request.spec.followed_id = request.id;
  }
  LogAdmitted(RecordOf(request, absl::OkStatus()), request.choices[0].sequence);
  request.sink->OnAccepted(request.id);
  Request& admitted = requests_.emplace(key, std::move(request)).first->second;
  if (!admitted.spec.generated.empty()) {
    TellGenerated(admitted);
    std::erase_if(sequences, [&](const core::SequenceRequest& sequence) {
      return admitted.choices[places_.at(sequence.id).choice].done;
    });
    Flush(key);
  }
  return sequences;
}

std::string RequestTable::NewId() const {
  std::string id;
  do {
    id = MakeRequestId();
  } while (ids_.contains(id));
  return id;
}

core::SequenceRequest RequestTable::MakeSequence(const Request& request, uint32_t choice) const {
  const GenerateSpec& spec = request.spec;
  const auto prompt = static_cast<uint32_t>(spec.prompt.size());
  const uint32_t wanted = spec.max_tokens != 0 ? spec.max_tokens : kMaxTokensDefault;
  const uint32_t least = std::min(spec.min_tokens, sequence_tokens_max_ - prompt);
  // What goes on behind tokens of its own cannot begin with another one's prompt.
  const bool begins =
      std::all_of(spec.generated.begin(), spec.generated.end(),
                  [](const GeneratedChoice& generated) { return generated.tokens.empty(); });
  core::SequenceRequest sequence{
      .id = request.choices[choice].sequence,
      .fork_of = choice == 0 || !begins ? 0 : request.choices[0].sequence,
      .prompt = spec.prompt,
      .sampling = spec.sampling,
      .tokens_max = prompt + std::min(wanted, sequence_tokens_max_ - prompt),
      .tokens_min = prompt + least + (least > 0 ? 1 : 0),  // The end comes behind these.
      .end_tokens = spec.stop_tokens,
      .priority = spec.priority,
      .score = spec.score,
      .decode_from = spec.decode_from,
      .beams = spec.beams,
      .cache_salt = spec.cache_salt,
      .accepted_before = spec.accepted_before,
      .submitted = request.arrived};
  sequence.sampling.seed = request.choices[choice].seed;
  if (!spec.generated.empty()) {
    for (const plan::SampledToken& token : spec.generated[choice].tokens) {
      sequence.generated.push_back(token.token);
    }
  }
  if (!spec.ignore_eos) {
    sequence.end_tokens.insert(sequence.end_tokens.end(), tokenizer_.end_tokens().begin(),
                               tokenizer_.end_tokens().end());
  }
  return sequence;
}

std::vector<plan::SequenceId> RequestTable::End(uint64_t key, const absl::Status& status) {
  const auto found = requests_.find(key);
  if (found == requests_.end()) {
    return {};
  }
  Request& request = found->second;
  std::vector<plan::SequenceId> sequences;
  for (const Choice& choice : request.choices) {
    if (!choice.done) {
      sequences.push_back(choice.sequence);
    }
    places_.erase(choice.sequence);
  }
  if (status.ok()) {
    ++finished_;
  } else if (absl::IsCancelled(status)) {
    metrics_.aborted.fetch_add(sequences.size(), std::memory_order_relaxed);
  } else {
    failed_ += IsRefusal(status) ? 0 : 1;
    metrics_.CountFailure(status.code());
  }
  const RequestRecord record = RecordOf(request, status);
  LogEnded(record);
  if (on_end_ != nullptr) {
    on_end_(record);
  }
  request.sink->OnDone(status);
  ids_.erase(request.id);
  requests_.erase(found);
  return sequences;
}

RequestRecord RequestTable::RecordOf(const Request& request, const absl::Status& status) const {
  RequestRecord record{.followed_id = request.spec.followed_id,
                       .id = request.id,
                       .caller = request.spec.caller,
                       .score = request.spec.score,
                       .choices = request.spec.choices,
                       .prompt_tokens = static_cast<uint32_t>(request.spec.prompt.size()),
                       .arrived = request.arrived,
                       .ended = clock_.Now(),
                       .status = status};
  const auto earlier = [](Nanos a, Nanos b) { return a == 0 || (b != 0 && b < a) ? b : a; };
  for (const Choice& choice : request.choices) {
    record.completion_tokens += choice.completion_tokens;
    record.preemptions += choice.preemptions;
    record.started = earlier(record.started, choice.started);
    record.first_token = earlier(record.first_token, choice.first_token);
  }
  return record;
}

std::vector<RequestRecord> RequestTable::Running() const {
  std::vector<RequestRecord> records;
  for (const auto& [key, request] : requests_) {
    records.push_back(RecordOf(request, absl::OkStatus()));
  }
  return records;
}

std::string RequestTable::FollowedId(plan::SequenceId sequence) {
  Request* request = nullptr;
  return Find(sequence, &request) == nullptr ? "" : request->spec.followed_id;
}

RequestTable::Choice* RequestTable::Find(plan::SequenceId sequence, Request** request) {
  const auto place = places_.find(sequence);
  if (place == places_.end()) {
    return nullptr;
  }
  *request = &requests_.find(place->second.key)->second;
  return &(*request)->choices[place->second.choice];
}

std::vector<plan::SequenceId> RequestTable::Deliver(core::Events& events) {
  std::vector<plan::SequenceId> stopped;
  std::set<uint64_t> touched;
  Request* request = nullptr;
  for (core::TokenEvent& event : events.tokens) {
    Choice* choice = Find(event.sequence, &request);
    if (choice == nullptr || choice->done) {
      continue;
    }
    TakeToken(*request, *choice, event);
    touched.insert(places_[event.sequence].key);
    if (choice->stops.stopped()) {
      Close(*request, *choice, plan::FinishReason::kStop);
      stopped.push_back(event.sequence);
    }
  }
  for (const plan::SequenceId id : events.preempted) {
    if (Choice* choice = Find(id, &request); choice != nullptr) {
      ++choice->preemptions;
    }
  }
  for (core::ScoreEvent& event : events.scores) {
    if (Choice* choice = Find(event.sequence, &request); choice != nullptr) {
      request->sink->OnScores(std::move(event.logprobs), std::move(event.ranks));
    }
  }
  std::vector<std::pair<uint64_t, absl::Status>> failed;
  for (const core::FinishEvent& event : events.finished) {
    Choice* choice = Find(event.sequence, &request);
    if (choice == nullptr || choice->done) {
      continue;
    }
    touched.insert(places_[event.sequence].key);
    if (event.reason == plan::FinishReason::kError) {
      failed.emplace_back(places_[event.sequence].key, event.status);
    } else {
      Close(*request, *choice, event.reason);
    }
  }
  for (const uint64_t key : touched) {
    Flush(key);
  }
  for (const auto& [key, status] : failed) {
    const std::vector<plan::SequenceId> rest = End(key, status);
    stopped.insert(stopped.end(), rest.begin(), rest.end());
  }
  return stopped;
}

void RequestTable::TakeToken(const Request& request, Choice& choice, core::TokenEvent& event) {
  if (event.token.outside) {
    // It is there to end the choice, and neither shown nor counted. Its prompt was worked on.
    choice.cached_tokens = event.cached_tokens;
    if (choice.completion_tokens == choice.told) {
      metrics_.prompt_tokens.fetch_add(request.spec.prompt.size(), std::memory_order_relaxed);
    }
    return;
  }
  const Nanos now = clock_.Now();
  if (choice.completion_tokens == choice.told) {
    choice.first_token = now;
    metrics_.time_to_first_token.Observe(ToSeconds(now - request.arrived));
    metrics_.prompt_tokens.fetch_add(request.spec.prompt.size(), std::memory_order_relaxed);
  } else if (request.spec.beams.width == 0) {  // Those of a search come all at once.
    metrics_.inter_token_latency.Observe(ToSeconds(now - choice.last_token));
  }
  choice.last_token = now;
  choice.cached_tokens = event.cached_tokens;
  ++tokens_;
  metrics_.generated_tokens.fetch_add(1, std::memory_order_relaxed);
  AddToken(request, choice, std::move(event.token));
}

void RequestTable::AddToken(const Request& request, Choice& choice, plan::SampledToken token) {
  ++choice.completion_tokens;
  // The text of an end token is not part of the answer, unless the client named it and asked.
  if (token.finish != plan::FinishReason::kStop) {
    AddText(request, choice, choice.decoder.Push(token.token));
  } else if (request.spec.include_stop && IsStopToken(request.spec, token.token)) {
    AddText(request, choice, choice.decoder.Push(token.token));
  }
  choice.pending.tokens.push_back(std::move(token));
  choice.has_pending = true;
}

void RequestTable::TellGenerated(Request& request) {
  std::vector<GeneratedChoice> generated = std::exchange(request.spec.generated, {});
  for (uint32_t i = 0; i < generated.size(); ++i) {
    TellGenerated(request, i, std::move(generated[i]));
  }
}

void RequestTable::TellGenerated(Request& request, uint32_t index, GeneratedChoice generated) {
  Choice& choice = request.choices[index];
  plan::FinishReason finish = generated.ended;
  for (plan::SampledToken& token : generated.tokens) {
    AddToken(request, choice, std::move(token));
    if (choice.stops.stopped()) {
      finish = plan::FinishReason::kStop;
      break;
    }
    choice.pending.index = index;
    request.sink->OnOutput(std::exchange(choice.pending, {}));
    choice.has_pending = false;
  }
  choice.told = choice.completion_tokens;
  const GenerateSpec& spec = request.spec;
  const uint32_t wanted = spec.max_tokens != 0 ? spec.max_tokens : kMaxTokensDefault;
  const bool is_full = choice.completion_tokens >= wanted ||
                       spec.prompt.size() + choice.completion_tokens >= sequence_tokens_max_;
  if (finish == plan::FinishReason::kNone && is_full) {
    finish = plan::FinishReason::kLength;
  }
  if (finish != plan::FinishReason::kNone) {
    Close(request, choice, finish);
  }
}

// No stop string ends within the text of the first min_tokens tokens, as in vLLM.
void RequestTable::AddText(const Request& request, Choice& choice, absl::string_view text) {
  const bool may_stop = choice.completion_tokens > request.spec.min_tokens;
  choice.pending.text += choice.stops.Push(text, may_stop);
}

void RequestTable::Close(Request& request, Choice& choice, plan::FinishReason reason) {
  if (!choice.stops.stopped()) {
    AddText(request, choice, choice.decoder.Finish());
    choice.pending.text += choice.stops.Finish();
  }
  const uint32_t timed = choice.completion_tokens - choice.told;
  choice.pending.finish = reason;
  if (reason == plan::FinishReason::kStop) {
    choice.pending.stop = choice.stops.matched();
  }
  choice.pending.usage = {
      .prompt_tokens = static_cast<uint32_t>(request.spec.prompt.size()),
      .completion_tokens = choice.completion_tokens,
      .ttft_ms = timed == 0 ? 0 : ToSeconds(choice.first_token - request.arrived) * 1e3,
      .tpot_ms =
          timed < 2 ? 0 : ToSeconds(choice.last_token - choice.first_token) * 1e3 / (timed - 1),
      .seed = choice.seed,
      .preemptions = choice.preemptions,
      .cached_tokens = choice.cached_tokens,
      .lossy = request.spec.lossy};
  Measure(request, choice, reason);
  choice.has_pending = true;
  choice.done = true;
  --request.choices_left;
}

void RequestTable::Measure(const Request& request, const Choice& choice,
                           plan::FinishReason reason) {
  // A completion that echoes its prompt with log-probabilities is a score and an answer, and one
  // request.
  if (request.spec.score) {
    metrics_.prompt_tokens.fetch_add(request.spec.prompt.size(), std::memory_order_relaxed);
    metrics_.scored.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const auto prompt = static_cast<double>(request.spec.prompt.size());
  metrics_.prompt_tokens_per_request.Observe(prompt);
  metrics_.tokens_per_request.Observe(choice.completion_tokens);
  if (reason == plan::FinishReason::kStop || reason == plan::FinishReason::kLength) {
    (reason == plan::FinishReason::kStop ? metrics_.stopped : metrics_.reached_length)
        .fetch_add(1, std::memory_order_relaxed);
  }
  if (choice.completion_tokens == choice.told) {
    return;
  }
  metrics_.end_to_end.Observe(ToSeconds(choice.last_token - request.arrived));
  metrics_.decode_time.Observe(ToSeconds(choice.last_token - choice.first_token));
  if (choice.started != 0) {
    metrics_.queue_time.Observe(ToSeconds(choice.started - request.arrived));
    metrics_.prefill_time.Observe(ToSeconds(choice.first_token - choice.started));
  }
}

void RequestTable::Started(plan::SequenceId sequence) {
  Request* request = nullptr;
  if (Choice* choice = Find(sequence, &request); choice != nullptr && choice->started == 0) {
    choice->started = clock_.Now();
  }
}

// Sends what the current Deliver() has gathered, and ends the request with its last choice.
void RequestTable::Flush(uint64_t key) {
  Request& request = requests_.find(key)->second;
  for (uint32_t i = 0; i < request.choices.size(); ++i) {
    Choice& choice = request.choices[i];
    if (choice.has_pending) {
      choice.pending.index = i;
      request.sink->OnOutput(std::exchange(choice.pending, {}));
      choice.has_pending = false;
    }
  }
  if (request.choices_left == 0) {
    End(key, absl::OkStatus());
  }
}

void RequestTable::Progress(plan::SequenceId sequence, uint32_t tokens_done) {
  Request* request = nullptr;
  if (Find(sequence, &request) != nullptr && tokens_done < request->spec.prompt.size()) {
    request->sink->OnProgress(tokens_done);
  }
}

uint64_t RequestTable::KeyOf(const std::string& request_id) const {
  const auto found = ids_.find(request_id);
  return found == ids_.end() ? 0 : found->second;
}

}  // namespace lamina::coordinator
