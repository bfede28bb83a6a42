// SPDX-License-Identifier: Apache-2.0
//
// InferenceService: lamina.v1.Inference over an Engine. Asynchronous: no thread per call.
//
// Threading: gRPC's threads, on which nodes tell that they live, only check lengths, in constant
// time or once over the messages of a chat, or over the prompt of a score that a client attaches
// to. A text of which too many tokens are certain is refused there; all others are rendered and
// tokenized by a pool of threads, which holds a bounded number of them. The engine's thread hands
// output to the streams. A request for structured output waits for its grammar on another thread,
// so that a form which is wrong or too complex never reaches the engine.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/chat_form.h"
#include "coordinator/engine.h"
#include "coordinator/generate_call_service.h"
#include "coordinator/journaled_requests_service.h"
#include "coordinator/score_call_service.h"
#include "coordinator/text_pool.h"
#include "coordinator/waiting_calls.h"
#include "lamina/v1/inference.grpc.pb.h"
#include "model/generation_config.h"
#include "model/grammar/grammar_cache.h"
#include "model/model_config.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::coordinator {

// What the server knows of a model besides what its tokenizer says.
struct ChatAdvice {
  std::string chat_template;  // Instead of the model's own; empty: that one.
  model::SamplingDefaults sampling;
  std::vector<std::string> names;  // What clients may call it, besides its own name.
};

class InferenceService final : public v1::Inference::CallbackService {
 public:
  // All references must outlive the service and every call.
  InferenceService(Engine& engine, const model::Tokenizer& tokenizer,
                   const model::ModelConfig& config, uint64_t kv_bytes_per_token,
                   ChatAdvice advice = {});

  // Requests are recorded from now on, and those that are left are gone on with. Before the first
  // call; they outlive the service.
  void UseJournal(JournaledRequests& journaled);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Attach(grpc::CallbackServerContext* context,
                                                         const v1::AttachRequest* request) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override;
  grpc::ServerWriteReactor<v1::ScoreUpdate>* ScoreStream(grpc::CallbackServerContext* context,
                                                         const v1::ScoreRequest* request) override;
  grpc::ServerWriteReactor<v1::ScoreUpdate>* AttachScore(grpc::CallbackServerContext* context,
                                                         const v1::AttachRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const v1::CancelRequest* request,
                                   v1::CancelResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;

 private:
  absl::StatusOr<std::vector<TokenId>> PromptOf(const v1::GenerateRequest& request) const;
  absl::StatusOr<std::vector<TokenId>> PromptOf(const v1::ScoreRequest& request) const;
  // Whether a text may be a prompt, by its bytes alone: before it is tokenized.
  absl::Status CheckText(absl::string_view text, bool score) const;
  absl::Status CheckTokens(size_t tokens, bool score, absl::string_view before = "") const;
  absl::StatusOr<std::string> Render(const v1::Chat& chat) const;
  absl::StatusOr<std::vector<TokenId>> EncodeRendered(const std::string& text) const;
  absl::StatusOr<GenerateSpec> SpecOf(const v1::GenerateRequest& request) const;
  absl::StatusOr<GenerateSpec> SpecOf(const v1::ScoreRequest& request) const;

  // In the pool: what is left to do of a call. `followed` has the names of its headers.
  void Submit(const std::shared_ptr<GenerateCall>& call, const v1::GenerateRequest& request,
              const GenerateSpec& followed);
  // Does in the pool what is left to do of a call that has started.
  void AddScore(grpc::CallbackServerContext& context, const v1::ScoreRequest* request,
                const std::shared_ptr<ScoreCall>& call);
  void SubmitScore(const std::shared_ptr<ScoreCall>& call, const v1::ScoreRequest& request,
                   GenerateSpec spec);
  void Refuse(const std::shared_ptr<ScoreCall>& call, const GenerateSpec& spec,
              const absl::Status& status);
  // Ends the call with what `work` returns, which runs in the pool.
  grpc::ServerUnaryReactor* OnTexts(grpc::CallbackServerContext* context, size_t bytes,
                                    std::function<absl::Status()> work);

  Engine& engine_;
  const model::Tokenizer& tokenizer_;
  const ChatAdvice advice_;
  const ChatForm chat_form_;
  const model::ModelConfig& config_;
  const uint64_t kv_bytes_per_token_;
  const std::shared_ptr<WaitingCalls> waiting_;  // Calls may outlive this.
  model::GrammarCache grammars_;
  JournaledRequests* journaled_ = nullptr;  // Without a journal.
  TextPool texts_;                          // Ends first: its jobs use all others.
};

}  // namespace lamina::coordinator
