// SPDX-License-Identifier: Apache-2.0
#include "coordinator/inference_service.h"

#include <cmath>
#include <ctime>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/trace_context.h"
#include "control/plan_codec_service.h"

namespace lamina::coordinator {
namespace {

// A form is compiled again on the compute nodes, while the request's prompt is worked on; if that
// takes longer, rows wait for it. So what would keep them long is refused here.
constexpr size_t kFormsMax = 64;
constexpr Nanos kFormCpuMax = Seconds(2);
constexpr size_t kFormBytesMax = 32 << 20;
// One thread compiles: requests behind these would wait longer than most clients do.
constexpr size_t kFormsQueuedMax = 128;

// Of a Score call. A client that goes, or whose deadline has passed, cancels the request.
class ScoreReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit ScoreReactor(Engine& engine) : engine_(engine) {}

  uint64_t key() const { return key_; }
  void OnCancel() override { engine_.Cancel(key_); }
  void OnDone() override { delete this; }

 private:
  Engine& engine_;
  const uint64_t key_ = Engine::NewKey();
};

// The reactor lives until OnDone(), which alone finishes the call.
class ScoreCall final : public RequestSink {
 public:
  ScoreCall(grpc::ServerUnaryReactor* reactor, const model::Tokenizer& tokenizer,
            v1::ScoreResponse* response)
      : reactor_(reactor), tokenizer_(tokenizer), response_(response) {}

  void OnAccepted(const std::string&) override {}
  void OnOutput(ChoiceOutput) override {}
  void OnProgress(uint32_t) override {}
  void OnScores(std::vector<float> logprobs, std::vector<core::TokenRank> ranks) override {
    double nll = 0;
    for (const float logprob : logprobs) {
      nll -= logprob;
    }
    response_->mutable_logprobs()->Add(logprobs.begin(), logprobs.end());
    response_->set_nll_sum(nll);
    response_->set_perplexity(
        logprobs.empty() ? 1.0 : std::exp(nll / static_cast<double>(logprobs.size())));
    for (const core::TokenRank& rank : ranks) {
      v1::TokenRank* entry = response_->add_ranks();
      entry->set_rank(rank.rank);
      for (const core::TokenLogprob& top : rank.top) {
        ToProto(top, tokenizer_, entry->add_top());
      }
    }
  }
  void OnDone(const absl::Status& status) override { reactor_->Finish(ToGrpc(status)); }

 private:
  grpc::ServerUnaryReactor* reactor_;
  const model::Tokenizer& tokenizer_;
  v1::ScoreResponse* response_;
};

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

grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                     const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

InferenceService::InferenceService(Engine& engine, const model::Tokenizer& tokenizer,
                                   const model::ModelConfig& config, uint64_t kv_bytes_per_token)
    : engine_(engine),
      tokenizer_(tokenizer),
      chat_form_(tokenizer),
      config_(config),
      kv_bytes_per_token_(kv_bytes_per_token),
      grammars_([this] { return model::MakeGrammarCompiler(tokenizer_, config_.vocabulary); },
                {.forms_max = kFormsMax,
                 .cpu_max = kFormCpuMax,
                 .bytes_max = kFormBytesMax,
                 .queue_max = kFormsQueuedMax}) {
  if (!chat_form_.status().ok()) {
    LogWarning(chat_form_.status().message());
  }
}

absl::StatusOr<std::vector<TokenId>> InferenceService::EncodeChat(const v1::Chat& chat) const {
  ChatRequest request{
      .tools_json = chat.tools_json(),
      .arguments_json = chat.template_arguments_json(),
      .add_generation_prompt = !chat.has_add_generation_prompt() || chat.add_generation_prompt()};
  for (const v1::ChatMessage& message : chat.messages()) {
    request.messages.push_back(
        {.role = message.role(), .content = message.content(), .json = message.json()});
  }
  const time_t seconds = std::time(nullptr);
  std::tm now{};
  localtime_r(&seconds, &now);
  LAMINA_ASSIGN_OR_RETURN(const std::string text, chat_form_.Render(request, now));
  return tokenizer_.Encode(text, {.add_special = false, .parse_special = true});
}

absl::StatusOr<std::vector<TokenId>> InferenceService::PromptOf(
    const v1::GenerateRequest& request) const {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      return tokenizer_.Encode(request.text(), {});
    case v1::GenerateRequest::kTokens:
      return std::vector<TokenId>(request.tokens().ids().begin(), request.tokens().ids().end());
    case v1::GenerateRequest::kChat:
      return EncodeChat(request.chat());
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the request has no prompt: set text, tokens or chat");
}

absl::StatusOr<GenerateSpec> InferenceService::SpecOf(const v1::GenerateRequest& request) const {
  GenerateSpec spec{.request_id = request.request_id(),
                    .sampling = control::FromProto(request.sampling()),
                    .max_tokens = request.max_tokens(),
                    .min_tokens = request.min_tokens(),
                    .stop = {request.stop().begin(), request.stop().end()},
                    .stop_tokens = {request.stop_tokens().begin(), request.stop_tokens().end()},
                    .ignore_eos = request.ignore_eos(),
                    .choices = request.has_n() ? request.n() : 1,
                    .priority = request.priority()};
  if (request.has_max_tokens() && request.max_tokens() == 0) {
    return absl::InvalidArgumentError("max_tokens is 0; ask for at least 1");
  }
  if (spec.ignore_eos && !spec.sampling.form.any()) {
    return absl::InvalidArgumentError(
        "ignore_eos and a form of output exclude each other: what has its form ends");
  }
  if (!request.sampling().has_seed()) {
    std::random_device entropy;
    spec.sampling.seed = uint64_t{entropy()} << 32 | entropy();
  }
  LAMINA_ASSIGN_OR_RETURN(spec.prompt, PromptOf(request));
  return spec;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto call =
      std::make_shared<GenerateCall>(request->sampling().has_logprobs(), tokenizer_, context);
  grpc::ServerWriteReactor<v1::GenerateResponse>* reactor = GenerateCall::Start(call, engine_);
  GenerateSpec followed{.request_id = request->request_id()};
  TakeHeaders(*context, followed);
  call->SetFollowedId(followed.followed_id);
  absl::StatusOr<GenerateSpec> spec = SpecOf(*request);
  if (spec.ok()) {
    spec->followed_id = followed.followed_id;
    spec->caller = followed.caller;
    call->SetPromptTokens(spec->prompt.size());
    GenerateCall::Submit(call, engine_, grammars_, *std::move(spec));
  } else {
    GenerateCall::Refuse(call, engine_, spec.status());
  }
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* context,
                                                  const v1::ScoreRequest* request,
                                                  v1::ScoreResponse* response) {
  GenerateSpec spec{.max_tokens = 1, .score = true};
  if (request->has_logprobs()) {
    // Values beyond int32 become INT32_MAX, which is refused as every other above the limit.
    spec.sampling.logprobs =
        static_cast<int32_t>(std::min<uint32_t>(request->logprobs(), INT32_MAX));
  }
  TakeHeaders(*context, spec);
  if (!spec.followed_id.empty()) {
    context->AddTrailingMetadata(kRequestIdHeader, spec.followed_id);
  }
  if (request->has_text()) {
    absl::StatusOr<std::vector<TokenId>> tokens = tokenizer_.Encode(request->text(), {});
    if (!tokens.ok()) {
      engine_.NoteRefused(spec.followed_id, tokens.status());
      return FinishWith(context, tokens.status());
    }
    spec.prompt = *std::move(tokens);
  } else {
    spec.prompt.assign(request->tokens().ids().begin(), request->tokens().ids().end());
  }
  response->mutable_tokens()->Add(spec.prompt.begin(), spec.prompt.end());
  for (const TokenId token : spec.prompt) {
    const bool known = token >= 0 && static_cast<size_t>(token) < tokenizer_.vocabulary_size();
    response->add_texts(known ? tokenizer_.TokenBytes(token, /*skip_special=*/false) : "");
  }
  // gRPC tells it of a cancellation when it has it, so the request is submitted before it is
  // cancelled.
  auto* reactor = new ScoreReactor(engine_);
  engine_.Submit(std::move(spec), reactor->key(),
                 std::make_shared<ScoreCall>(reactor, tokenizer_, response));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const bool add_special = !request->has_add_special() || request->add_special();
  const absl::StatusOr<std::vector<TokenId>> tokens =
      request->has_chat() ? EncodeChat(request->chat())
                          : tokenizer_.Encode(request->text(), {.add_special = add_special});
  if (!tokens.ok()) {
    return FinishWith(context, tokens.status());
  }
  for (const TokenId token : *tokens) {
    response->add_tokens(token);
    response->add_pieces(std::string(tokenizer_.TokenName(token)));
  }
  return FinishWith(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  const std::vector<TokenId> tokens(request->tokens().begin(), request->tokens().end());
  const absl::StatusOr<std::string> checked = tokenizer_.Decode(tokens, request->skip_special());
  if (!checked.ok()) {
    return FinishWith(context, checked.status());
  }
  // A protobuf string is UTF-8: the stream decoder replaces what is not.
  model::StreamDecoder decoder(tokenizer_, request->skip_special());
  std::string text;
  for (const TokenId token : tokens) {
    text += decoder.Push(token);
  }
  response->set_text(text + decoder.Finish());
  return FinishWith(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceService::Cancel(grpc::CallbackServerContext* context,
                                                   const v1::CancelRequest* request,
                                                   v1::CancelResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  engine_.CancelById(request->request_id(),
                     [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
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
  model->set_sequence_tokens_max(engine_.sequence_tokens_max());
  model->set_kv_bytes_per_token(kv_bytes_per_token_);
  return FinishWith(context, absl::OkStatus());
}

}  // namespace lamina::coordinator
