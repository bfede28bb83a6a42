// SPDX-License-Identifier: Apache-2.0
//
// GenerateCall: one Generate call of the Inference service: a queue between the engine's thread and
// gRPC's. The engine's sink and the reactor share it, so either may go first.
//
// Threading: as written with the functions; what the queue holds is guarded by a mutex.

#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engine.h"
#include "coordinator/journal.h"
#include "lamina/v1/inference.grpc.pb.h"
#include "model/grammar/grammar_cache.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::coordinator {

class WaitingCalls;

grpc::Status ToGrpc(const absl::Status& status);

// With its text.
void ToProto(const plan::TokenLogprob& token, const model::Tokenizer& tokenizer,
             v1::TokenLogprob* proto);

class GenerateCall final : public RequestSink {
 public:
  // `context` must live until the call is done. `key`: by which the engine knows the request.
  GenerateCall(bool with_logprobs, const model::Tokenizer& tokenizer,
               grpc::CallbackServerContext* context, uint64_t key = Engine::NewKey())
      : with_logprobs_(with_logprobs), tokenizer_(tokenizer), context_(context), key_(key) {}

  // The reactor of the call, which keeps it. A client that goes cancels the request.
  static grpc::ServerWriteReactor<v1::GenerateResponse>* Start(
      const std::shared_ptr<GenerateCall>& call, Engine& engine);

  // These before the request is submitted.
  void SetFollowedId(const std::string& id) { followed_id_ = id; }
  void SetPromptTokens(size_t tokens) { prompt_tokens_ = static_cast<uint32_t>(tokens); }
  // The first message with output has them.
  void ReturnPrompt(std::vector<TokenId> prompt) { returned_ = std::move(prompt); }
  // The request's part of the journal, or null. It is kept until the client has its whole answer.
  void SetJournaled(std::shared_ptr<JournaledRequest> journaled) {
    journaled_ = std::move(journaled);
  }

  // Ends the call of a request that is not submitted, and has the engine note it. After Start().
  static void Refuse(const std::shared_ptr<GenerateCall>& call, Engine& engine,
                     const absl::Status& status);

  // The call is one of `calls`, by its request's id, until the engine knows the request or the call
  // ends. Once, before what follows.
  static void Wait(const std::shared_ptr<GenerateCall>& call, std::shared_ptr<WaitingCalls> calls,
                   const std::string& request_id);

  // Ends the call that was cancelled before its request was submitted. After Start().
  void EndCancelled();
  bool IsCancelled();

  // Gives the request to the engine, one with structured output when its form is compiled: what is
  // wrong with a form ends the call. After Start() and Wait().
  static void Submit(const std::shared_ptr<GenerateCall>& call, Engine& engine,
                     model::GrammarCache& grammars, GenerateSpec spec);

  void OnAccepted(const std::string& request_id) override;
  void OnOutput(ChoiceOutput output) override;
  void OnProgress(uint32_t tokens_done) override;
  void OnScores(std::vector<float>, std::vector<plan::TokenRank>) override {}
  void OnDone(const absl::Status& status) override;

 private:
  class Reactor;

  void SubmitUnlessCancelled(Engine& engine, GenerateSpec spec, std::shared_ptr<RequestSink> self);
  void Attach(Reactor* reactor);
  void Detach();
  void WriteDone();
  void SetCancelled();
  void CancelById();
  bool AwaitForm();  // False: it is cancelled.
  void StopWaiting();
  void Pump();

  const bool with_logprobs_;
  const model::Tokenizer& tokenizer_;
  grpc::CallbackServerContext* const context_;
  const uint64_t key_;
  std::shared_ptr<JournaledRequest> journaled_;
  uint32_t prompt_tokens_ = 0;
  std::vector<TokenId> returned_;  // Engine's thread once submitted; empty when sent.
  std::string request_id_;         // Engine's thread.
  std::string followed_id_;        // Engine's thread, until `final_` is set.
  std::shared_ptr<WaitingCalls> waiting_calls_;
  std::string waiting_id_;  // By which it is one of these; as request_id_.

  std::mutex mutex_;
  std::deque<v1::GenerateResponse> queue_;  // At most one entry per token of the request.
  v1::GenerateResponse current_;
  std::optional<absl::Status> final_;
  bool writing_ = false;
  bool finishing_ = false;
  bool cancelled_ = false;
  bool cancelled_by_id_ = false;
  bool awaits_form_ = false;  // And nobody needs the client's message any more.
  Reactor* reactor_ = nullptr;
};

}  // namespace lamina::coordinator
