// SPDX-License-Identifier: Apache-2.0
//
// ScoreCall: one Score, ScoreStream or AttachScore call of the Inference service. The engine's sink
// and the reactor share it.
//
// Threading: as written with the functions; a mutex decides between the request and the end of
// its client.

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engine.h"
#include "coordinator/journal.h"
#include "lamina/v1/inference.grpc.pb.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::coordinator {

class ScoreCall final : public RequestSink {
 public:
  // `context` must live until the call is done. `key`: by which the engine knows the request.
  ScoreCall(const model::Tokenizer& tokenizer, grpc::CallbackServerContext* context,
            uint64_t key = Engine::NewKey())
      : tokenizer_(tokenizer), context_(context), key_(key) {}

  // The reactor of the call, which keeps it. A client that goes, or whose deadline has passed,
  // cancels the request. `response` must live until the call is done.
  static grpc::ServerUnaryReactor* Start(const std::shared_ptr<ScoreCall>& call, Engine& engine,
                                         v1::ScoreResponse* response);
  // Starts a call that is told how far its request is.
  static grpc::ServerWriteReactor<v1::ScoreUpdate>* StartStream(
      const std::shared_ptr<ScoreCall>& call, Engine& engine);

  // These before the request is submitted, or its kept answer connected.
  void SetFollowedId(const std::string& id) { followed_id_ = id; }
  // The request's part of the journal, or null. It is kept until the client has its answer.
  void SetJournaled(std::shared_ptr<JournaledRequest> journaled) {
    journaled_ = std::move(journaled);
  }
  // After Start(): the answer has these tokens, and their texts.
  void SetPrompt(const std::vector<TokenId>& prompt);

  // Any thread, once, after Start(): gives the request, with its prompt set here, to the engine, or
  // ends the call of a client that has gone.
  static void Submit(const std::shared_ptr<ScoreCall>& call, Engine& engine, GenerateSpec spec);

  bool IsCancelled();

  void OnAccepted(const std::string& request_id) override;
  void OnOutput(ChoiceOutput output) override;
  void OnProgress(uint32_t tokens_done) override;
  void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) override;
  void OnDone(const absl::Status& status) override;

 private:
  // What a reactor does with news of the request.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void SendMetadata() = 0;  // Before all that follows.
    virtual void TakeProgress(uint32_t tokens_done, uint32_t tokens) = 0;
    // Once, last: the listener may be gone when this returns.
    virtual void End(const absl::Status& status) = 0;
  };
  class UnaryReactor;
  class StreamReactor;

  void Cancel(Engine& engine);

  const model::Tokenizer& tokenizer_;
  grpc::CallbackServerContext* const context_;
  const uint64_t key_;
  std::string followed_id_;  // Whoever has the request: the engine's thread once it was submitted.
  std::shared_ptr<JournaledRequest> journaled_;
  v1::ScoreResponse* response_ = nullptr;  // Both live until OnDone() has ended the call.
  Listener* listener_ = nullptr;

  std::mutex mutex_;  // Guards a StreamReactor's state too, which it outlives.
  bool cancelled_ = false;
};

}  // namespace lamina::coordinator
