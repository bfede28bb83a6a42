// SPDX-License-Identifier: Apache-2.0
#include "coordinator/inference_service.h"

#include <ctime>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/trace_context.h"
#include "control/plan_codec_service.h"
#include "coordinator/request_table.h"

namespace lamina::coordinator {
namespace {

// A form is compiled again on the compute nodes, while the request's prompt is worked on; if that
// takes longer, rows wait for it. So what would keep them long is refused here.
constexpr size_t kFormsMax = 64;
constexpr Nanos kFormCpuMax = Seconds(2);
constexpr size_t kFormBytesMax = 32 << 20;
// One thread compiles: requests behind these would wait longer than most clients do.
constexpr size_t kFormsQueuedMax = 128;
// The most that Tokenize and Detokenize take, whose answers are several times as large. More than
// any sequence has.
constexpr size_t kTokenizeBytesMax = 4 << 20;
constexpr int kDetokenizeTokensMax = 1 << 20;
constexpr size_t kCacheSaltBytesMax = 512;

// The value of a header of the call; empty without.
absl::string_view Header(const grpc::CallbackServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  return found == context.client_metadata().end()
             ? absl::string_view()
             : absl::string_view(found->second.data(), found->second.size());
}

// Names by which the client follows the request. Those that are not of their form count as absent.
void TakeHeaders(const grpc::CallbackServerContext& context, GenerateSpec& spec) {
  const absl::string_view id = Header(context, kRequestIdHeader);
  spec.followed_id = IsRequestId(id) ? std::string(id) : spec.request_id;
  spec.caller = ParseTraceParent(Header(context, kTraceParentHeader));
  const absl::string_view state = Header(context, kTraceStateHeader);
  if (spec.caller.has_value() && IsTraceState(state)) {
    spec.caller->state = std::string(state);
  }
}

size_t BytesOf(const v1::Chat& chat) {
  size_t bytes =
      chat.tools_json().size() + chat.template_arguments_json().size() + chat.suffix().size();
  for (const v1::ChatMessage& message : chat.messages()) {
    bytes += message.role().size() + message.content().size() + message.json().size();
  }
  return bytes;
}

// Bytes of the prompt.
size_t BytesOf(const v1::GenerateRequest& request) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      return request.text().size();
    case v1::GenerateRequest::kTokens:
      return static_cast<size_t>(request.tokens().ids_size()) * sizeof(TokenId);
    case v1::GenerateRequest::kChat:
      return BytesOf(request.chat());
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return 0;
}

absl::Status CheckTokenizeBytes(size_t bytes) {
  return bytes <= kTokenizeBytesMax
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("the text has ", bytes, " bytes; at most ",
                                                       kTokenizeBytesMax, " are tokenized"));
}

// Cuts the prompt to what the request keeps of it.
absl::Status Truncate(const v1::GenerateRequest& request, std::vector<TokenId>* prompt) {
  const size_t most = request.prompt_tokens_max();
  if (most == 0) {
    return absl::InvalidArgumentError("prompt_tokens_max is 0; keep at least 1 token");
  }
  if (prompt->size() > most && request.truncate_end()) {
    prompt->resize(most);
  } else if (prompt->size() > most) {
    prompt->erase(prompt->begin(), prompt->end() - static_cast<std::ptrdiff_t>(most));
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                     const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

void FillDefaults(const model::SamplingDefaults& defaults, v1::Sampling& sampling) {
  const auto set = [&sampling](const auto& value, auto setter) {
    if (value.has_value()) {
      (sampling.*setter)(*value);
    }
  };
  set(defaults.temperature, &v1::Sampling::set_temperature);
  set(defaults.top_k, &v1::Sampling::set_top_k);
  set(defaults.top_p, &v1::Sampling::set_top_p);
  set(defaults.min_p, &v1::Sampling::set_min_p);
  set(defaults.repetition_penalty, &v1::Sampling::set_repetition_penalty);
}

// A request for 0 choices is refused later, as every other one, whatever it chooses them from.
absl::Status ReadBestOf(const v1::GenerateRequest& request, GenerateSpec& spec) {
  if (!request.has_best_of() || spec.choices == 0 || request.best_of() == spec.choices) {
    return absl::OkStatus();
  }
  if (request.best_of() < spec.choices) {
    return absl::InvalidArgumentError(
        absl::StrCat("best_of is ", request.best_of(), ", less than n, which is ", spec.choices));
  }
  spec.best = spec.choices;
  spec.choices = request.best_of();
  spec.sampling.logprobs = std::max(spec.sampling.logprobs, 0);
  return absl::OkStatus();
}

// A number may be a newer client's, whose rule is not known here.
absl::StatusOr<BeamStop> BeamStopOf(v1::BeamSearch::EarlyStopping stop) {
  switch (stop) {
    case v1::BeamSearch::EARLY_STOPPING_HEURISTIC:
      return BeamStop::kHeuristic;
    case v1::BeamSearch::EARLY_STOPPING_FULL:
      return BeamStop::kFull;
    case v1::BeamSearch::EARLY_STOPPING_NEVER:
      return BeamStop::kNever;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("early_stopping is ", static_cast<int>(stop),
                       "; it must be EARLY_STOPPING_HEURISTIC (0), EARLY_STOPPING_FULL (1) or "
                       "EARLY_STOPPING_NEVER (2)"));
  }
}

absl::Status ReadBeams(const v1::BeamSearch& search, GenerateSpec& spec) {
  if (search.width() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("beam_width is 0; it must be in [1, ", BeamParams::kWidthMax, "]"));
  }
  LAMINA_ASSIGN_OR_RETURN(const BeamStop stop, BeamStopOf(search.early_stopping()));
  spec.beams = {.width = search.width(),
                .length_penalty = search.has_length_penalty() ? search.length_penalty() : 1,
                .early_stopping = stop};
  return absl::OkStatus();
}

// What a score asks, but for its prompt.
GenerateSpec WithoutPrompt(const v1::ScoreRequest& request) {
  GenerateSpec spec{.max_tokens = 1,
                    .policy = request.policy(),
                    .kv = request.kv(),
                    .score = true,
                    .decode_from = request.decode_from()};
  if (request.has_logprobs()) {
    // Values beyond int32 become INT32_MAX, which is refused as every other above the limit.
    spec.sampling.logprobs =
        static_cast<int32_t>(std::min<uint32_t>(request.logprobs(), INT32_MAX));
  }
  return spec;
}

constexpr char kNoJournal[] = "the coordinator has no journal (coordinator.journal)";

}  // namespace

InferenceService::InferenceService(Engine& engine, const model::Tokenizer& tokenizer,
                                   const model::ModelConfig& config, uint64_t kv_bytes_per_token,
                                   ChatAdvice advice)
    : engine_(engine),
      tokenizer_(tokenizer),
      advice_(std::move(advice)),
      chat_form_(tokenizer, advice_.chat_template),
      config_(config),
      kv_bytes_per_token_(kv_bytes_per_token),
      // No fewer than the engine would take.
      waiting_(std::make_shared<WaitingCalls>(size_t{engine.limits().running_max} +
                                              engine.limits().waiting_max)),
      grammars_([this] { return model::MakeGrammarCompiler(tokenizer_, config_.vocabulary); },
                {.forms_max = kFormsMax,
                 .cpu_max = kFormCpuMax,
                 .bytes_max = kFormBytesMax,
                 .queue_max = kFormsQueuedMax}) {
  if (!chat_form_.status().ok()) {
    LogWarning(chat_form_.status().message());
  }
}

absl::Status InferenceService::CheckText(absl::string_view text, bool score) const {
  return CheckTokens(tokenizer_.tokens_min(text), score,
                     absl::StrCat(text.size(), " bytes, which are at least "));
}

// In the words of RequestTable, which looks at those that may fit.
absl::Status InferenceService::CheckTokens(size_t tokens, bool score,
                                           absl::string_view before) const {
  const size_t limit = engine_.limits().sequence_tokens_max;
  const size_t room = limit - (score ? 0 : 1);
  if (tokens <= room) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the prompt has ", before, tokens,
                                                 " tokens; at most ", room,
                                                 " fit: this model's maximum context length is ",
                                                 limit, " tokens (limits.sequence_tokens_max)"));
}

absl::StatusOr<std::string> InferenceService::Render(const v1::Chat& chat) const {
  ChatRequest request{
      .tools_json = chat.tools_json(),
      .arguments_json = chat.template_arguments_json(),
      .add_generation_prompt = !chat.has_add_generation_prompt() || chat.add_generation_prompt(),
      .continue_final_message = chat.continue_final_message(),
      .suffix = chat.suffix()};
  for (const v1::ChatMessage& message : chat.messages()) {
    request.messages.push_back(
        {.role = message.role(), .content = message.content(), .json = message.json()});
  }
  const time_t seconds = std::time(nullptr);
  std::tm now{};
  localtime_r(&seconds, &now);
  return chat_form_.Render(request, now);
}

absl::StatusOr<std::vector<TokenId>> InferenceService::EncodeRendered(
    const std::string& text) const {
  return tokenizer_.Encode(text, {.add_special = false, .parse_special = true});
}

absl::StatusOr<std::vector<TokenId>> InferenceService::PromptOf(
    const v1::GenerateRequest& request) const {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      return tokenizer_.Encode(request.text(), {});
    case v1::GenerateRequest::kTokens:
      return std::vector<TokenId>(request.tokens().ids().begin(), request.tokens().ids().end());
    case v1::GenerateRequest::kChat: {
      LAMINA_ASSIGN_OR_RETURN(const std::string text, Render(request.chat()));
      LAMINA_RETURN_IF_ERROR(request.has_prompt_tokens_max() ? CheckTokenizeBytes(text.size())
                                                             : CheckText(text, /*score=*/false));
      return EncodeRendered(text);
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the request has no prompt: set text, tokens or chat");
}

absl::StatusOr<std::vector<TokenId>> InferenceService::PromptOf(
    const v1::ScoreRequest& request) const {
  if (request.has_text()) {
    return tokenizer_.Encode(request.text(), {});
  }
  return std::vector<TokenId>(request.tokens().ids().begin(), request.tokens().ids().end());
}

absl::StatusOr<GenerateSpec> InferenceService::SpecOf(const v1::ScoreRequest& request) const {
  GenerateSpec spec = WithoutPrompt(request);
  LAMINA_ASSIGN_OR_RETURN(spec.prompt, PromptOf(request));
  return spec;
}

absl::StatusOr<GenerateSpec> InferenceService::SpecOf(const v1::GenerateRequest& request) const {
  GenerateSpec spec{.request_id = request.request_id(),
                    .sampling = control::FromProto(request.sampling()),
                    .max_tokens = request.max_tokens(),
                    .min_tokens = request.min_tokens(),
                    .stop = {request.stop().begin(), request.stop().end()},
                    .stop_tokens = {request.stop_tokens().begin(), request.stop_tokens().end()},
                    .ignore_eos = request.ignore_eos(),
                    .keep_special = request.keep_special(),
                    .include_stop = request.include_stop(),
                    .choices = request.has_n() ? request.n() : 1,
                    .priority = request.priority(),
                    .cache_salt = request.cache_salt(),
                    .policy = request.policy(),
                    .kv = request.kv()};
  if (request.cache_salt().size() > kCacheSaltBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("cache_salt has ", request.cache_salt().size(),
                                                   " bytes, at most ", kCacheSaltBytesMax,
                                                   " are taken"));
  }
  LAMINA_RETURN_IF_ERROR(ReadBestOf(request, spec));
  if (request.has_beam_search()) {
    LAMINA_RETURN_IF_ERROR(ReadBeams(request.beam_search(), spec));
  }
  if (request.has_max_tokens() && request.max_tokens() == 0) {
    return absl::InvalidArgumentError("max_tokens is 0; ask for at least 1");
  }
  if (spec.ignore_eos && !spec.sampling.form.any()) {
    return absl::InvalidArgumentError(
        "ignore_eos and structured output exclude each other: what has its form ends");
  }
  if (!request.sampling().has_seed()) {
    std::random_device entropy;
    spec.sampling.seed = uint64_t{entropy()} << 32 | entropy();
  }
  LAMINA_ASSIGN_OR_RETURN(spec.prompt, PromptOf(request));
  if (request.has_prompt_tokens_max()) {
    LAMINA_RETURN_IF_ERROR(Truncate(request, &spec.prompt));
  }
  return spec;
}

void InferenceService::Submit(const std::shared_ptr<GenerateCall>& call,
                              const v1::GenerateRequest& request, const GenerateSpec& followed) {
  absl::StatusOr<GenerateSpec> spec = SpecOf(request);
  if (!spec.ok()) {
    GenerateCall::Refuse(call, engine_, spec.status());
    return;
  }
  spec->followed_id = followed.followed_id;
  spec->caller = followed.caller;
  call->SetPromptTokens(spec->prompt.size());
  if (request.return_prompt()) {
    call->ReturnPrompt(spec->prompt);
  }
  if (journaled_ != nullptr) {
    call->SetJournaled(journaled_->Begin(request, *spec));
  }
  GenerateCall::Submit(call, engine_, grammars_, *std::move(spec));
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto call =
      std::make_shared<GenerateCall>(request->sampling().has_logprobs(), tokenizer_, context);
  grpc::ServerWriteReactor<v1::GenerateResponse>* reactor = GenerateCall::Start(call, engine_);
  // An id that is too long is refused before it is copied, and logged nowhere.
  const absl::Status named = CheckRequestId(request->request_id());
  GenerateSpec followed{.request_id = named.ok() ? request->request_id() : std::string()};
  TakeHeaders(*context, followed);
  call->SetFollowedId(followed.followed_id);
  GenerateCall::Wait(call, waiting_, followed.request_id);
  const absl::Status fits =
      !named.ok()                        ? named
      : request->has_prompt_tokens_max() ? CheckTokenizeBytes(BytesOf(*request))
      : request->has_text()
          ? CheckText(request->text(), /*score=*/false)
          : CheckTokens(static_cast<size_t>(request->tokens().ids_size()), /*score=*/false);
  // The request lives until the call has ended, which it does not before the job.
  const absl::Status added =
      !fits.ok()
          ? fits
          : texts_.Add(
                {.bytes = BytesOf(*request),
                 .run = [this, call, request, followed] { Submit(call, *request, followed); },
                 .gone = [context, call] { return context->IsCancelled() || call->IsCancelled(); },
                 .drop = [call] { call->EndCancelled(); }});
  if (!added.ok()) {
    GenerateCall::Refuse(call, engine_, added);
  }
  return reactor;
}

void InferenceService::UseJournal(JournaledRequests& journaled) {
  journaled_ = &journaled;
  journaled.Resume(
      {.generate = [this](const v1::GenerateRequest& request) { return SpecOf(request); },
       .score = [this](const v1::ScoreRequest& request) { return SpecOf(request); }});
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Attach(
    grpc::CallbackServerContext* context, const v1::AttachRequest* request) {
  if (journaled_ != nullptr) {
    return journaled_->Attach(context, *request);
  }
  const auto call = std::make_shared<GenerateCall>(false, tokenizer_, context);
  grpc::ServerWriteReactor<v1::GenerateResponse>* reactor = GenerateCall::Start(call, engine_);
  call->OnDone(absl::NotFoundError(kNoJournal));
  return reactor;
}

grpc::ServerWriteReactor<v1::ScoreUpdate>* InferenceService::AttachScore(
    grpc::CallbackServerContext* context, const v1::AttachRequest* request) {
  if (journaled_ != nullptr) {
    return journaled_->AttachScore(context, *request);
  }
  const auto call = std::make_shared<ScoreCall>(tokenizer_, context);
  grpc::ServerWriteReactor<v1::ScoreUpdate>* reactor = ScoreCall::StartStream(call, engine_);
  call->OnDone(absl::NotFoundError(kNoJournal));
  return reactor;
}

void InferenceService::Refuse(const std::shared_ptr<ScoreCall>& call, const GenerateSpec& spec,
                              const absl::Status& status) {
  engine_.NoteRefused(spec.followed_id, status);
  call->OnDone(status);
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* context,
                                                  const v1::ScoreRequest* request,
                                                  v1::ScoreResponse* response) {
  auto call = std::make_shared<ScoreCall>(tokenizer_, context);
  grpc::ServerUnaryReactor* reactor = ScoreCall::Start(call, engine_, response);
  AddScore(*context, request, call);
  return reactor;
}

grpc::ServerWriteReactor<v1::ScoreUpdate>* InferenceService::ScoreStream(
    grpc::CallbackServerContext* context, const v1::ScoreRequest* request) {
  auto call = std::make_shared<ScoreCall>(tokenizer_, context);
  grpc::ServerWriteReactor<v1::ScoreUpdate>* reactor = ScoreCall::StartStream(call, engine_);
  AddScore(*context, request, call);
  return reactor;
}

void InferenceService::AddScore(grpc::CallbackServerContext& context,
                                const v1::ScoreRequest* request,
                                const std::shared_ptr<ScoreCall>& call) {
  GenerateSpec spec = WithoutPrompt(*request);
  TakeHeaders(context, spec);
  call->SetFollowedId(spec.followed_id);
  const size_t tokens = static_cast<size_t>(request->tokens().ids_size());
  const absl::Status fits = request->has_text() ? CheckText(request->text(), /*score=*/true)
                                                : CheckTokens(tokens, /*score=*/true);
  const absl::Status added =
      !fits.ok()
          ? fits
          : texts_.Add(
                {.bytes = request->text().size() + tokens * sizeof(TokenId),
                 .run = [this, call, request, spec] { SubmitScore(call, *request, spec); },
                 .gone = [&context] { return context.IsCancelled(); },
                 .drop = [call] { call->OnDone(absl::CancelledError("the client has gone")); }});
  if (!added.ok()) {
    Refuse(call, spec, added);
  }
}

void InferenceService::SubmitScore(const std::shared_ptr<ScoreCall>& call,
                                   const v1::ScoreRequest& request, GenerateSpec spec) {
  absl::StatusOr<std::vector<TokenId>> prompt = PromptOf(request);
  if (!prompt.ok()) {
    Refuse(call, spec, prompt.status());
    return;
  }
  spec.prompt = *std::move(prompt);
  if (journaled_ != nullptr) {
    call->SetJournaled(journaled_->Begin(request, spec));
  }
  ScoreCall::Submit(call, engine_, std::move(spec));
}

grpc::ServerUnaryReactor* InferenceService::OnTexts(grpc::CallbackServerContext* context,
                                                    size_t bytes,
                                                    std::function<absl::Status()> work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status added =
      texts_.Add({.bytes = bytes,
                  .run = [reactor, work = std::move(work)] { reactor->Finish(ToGrpc(work())); },
                  .gone = [context] { return context->IsCancelled(); },
                  .drop = [reactor] { reactor->Finish(grpc::Status::CANCELLED); }});
  if (!added.ok()) {
    reactor->Finish(ToGrpc(added));
  }
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const size_t bytes = request->has_chat() ? BytesOf(request->chat()) : request->text().size();
  if (const absl::Status fits = CheckTokenizeBytes(bytes); !fits.ok()) {
    return FinishWith(context, fits);
  }
  return OnTexts(context, bytes, [this, request, response]() -> absl::Status {
    std::vector<TokenId> tokens;
    if (request->has_chat()) {
      LAMINA_ASSIGN_OR_RETURN(const std::string text, Render(request->chat()));
      LAMINA_RETURN_IF_ERROR(CheckTokenizeBytes(text.size()));
      LAMINA_ASSIGN_OR_RETURN(tokens, EncodeRendered(text));
    } else {
      const bool add_special = !request->has_add_special() || request->add_special();
      LAMINA_ASSIGN_OR_RETURN(tokens,
                              tokenizer_.Encode(request->text(), {.add_special = add_special}));
    }
    for (const TokenId token : tokens) {
      response->add_tokens(token);
      response->add_pieces(std::string(tokenizer_.TokenName(token)));
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  if (request->tokens_size() > kDetokenizeTokensMax) {
    return FinishWith(context, absl::InvalidArgumentError(
                                   absl::StrCat(request->tokens_size(), " tokens; at most ",
                                                kDetokenizeTokensMax, " become text at once")));
  }
  const size_t bytes = static_cast<size_t>(request->tokens_size()) * sizeof(TokenId);
  return OnTexts(context, bytes, [this, request, response]() -> absl::Status {
    const std::vector<TokenId> tokens(request->tokens().begin(), request->tokens().end());
    LAMINA_RETURN_IF_ERROR(tokenizer_.Decode(tokens, request->skip_special()).status());
    // A protobuf string is UTF-8: the stream decoder replaces what is not.
    model::StreamDecoder decoder(tokenizer_, request->skip_special());
    std::string text;
    for (const TokenId token : tokens) {
      text += decoder.Push(token);
    }
    response->set_text(text + decoder.Finish());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::Cancel(grpc::CallbackServerContext* context,
                                                   const v1::CancelRequest* request,
                                                   v1::CancelResponse*) {
  if (const absl::Status named = CheckRequestId(request->request_id()); !named.ok()) {
    return FinishWith(context, named);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  // The engine is asked too: one that waited may have come to it meanwhile.
  const std::string& id = request->request_id();
  const bool was_left = journaled_ != nullptr && journaled_->Cancel(id);
  const bool waited = waiting_->Cancel(id) || was_left;
  engine_.CancelById(id, [reactor, waited](const absl::Status& status) {
    reactor->Finish(waited ? grpc::Status() : ToGrpc(status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const v1::ListModelsRequest*,
                                                       v1::ListModelsResponse* response) {
  v1::Model* model = response->add_models();
  model->set_id(config_.name);
  model->set_architecture(config_.architecture);
  model->set_layers(config_.layers);
  model->set_vocabulary(config_.vocabulary);
  model->set_sequence_tokens_max(engine_.limits().sequence_tokens_max);
  model->set_kv_bytes_per_token(kv_bytes_per_token_);
  model->set_lossy(engine_.lossy());
  for (const PreparedPolicy& policy : engine_.policies()) {
    v1::Policy* const known = model->add_policies();
    known->set_name(policy.name);
    known->set_lossy(policy.lossy);
    known->set_kv(engine_.has_both_forms() ? std::string(KvFormName(policy.kv)) : "");
  }
  model->set_policy(engine_.policies().empty() ? "" : engine_.policies().front().name);
  model->set_chat_template(advice_.chat_template.empty() ? std::string(tokenizer_.chat_template())
                                                         : advice_.chat_template);
  const auto name = [this](TokenId token) {
    return token < 0 ? std::string() : std::string(tokenizer_.TokenName(token));
  };
  model->set_bos_token(name(tokenizer_.bos()));
  model->set_eos_token(name(tokenizer_.eos()));
  FillDefaults(advice_.sampling, *model->mutable_sampling_defaults());
  for (const std::string& known : advice_.names) {
    model->add_names(known);
  }
  return FinishWith(context, absl::OkStatus());
}

}  // namespace lamina::coordinator
