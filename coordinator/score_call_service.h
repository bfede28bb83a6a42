// SPDX-License-Identifier: Apache-2.0
//
// ScoreCall: one Score or ScoreStream call of the Inference service. The engine's sink and the
// reactor share it.
//
// Threading: as written with the functions; a mutex decides between the request and the end of
// its client.

#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "coordinator/engine.h"
#include "lamina/v1/inference.grpc.pb.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::coordinator {

class ScoreCall final : public RequestSink {
 public:
  explicit ScoreCall(const model::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // The reactor of the call, which keeps it. A client that goes, or whose deadline has passed,
  // cancels the request. `response` must live until the call is done.
  static grpc::ServerUnaryReactor* Start(const std::shared_ptr<ScoreCall>& call, Engine& engine,
                                         v1::ScoreResponse* response);
  // Starts a call that is told how far its request is.
  static grpc::ServerWriteReactor<v1::ScoreUpdate>* StartStream(
      const std::shared_ptr<ScoreCall>& call, Engine& engine);

  // Any thread, once, after Start(): gives the request, with its tokens and their texts in the
  // answer, to the engine, or ends the call of a client that has gone.
  static void Submit(const std::shared_ptr<ScoreCall>& call, Engine& engine, GenerateSpec spec);

  void OnAccepted(const std::string&) override {}
  void OnOutput(ChoiceOutput) override {}
  void OnProgress(uint32_t tokens_done) override;
  void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) override;
  void OnDone(const absl::Status& status) override;

 private:
  // What a reactor does with news of the request.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void TakeProgress(uint32_t tokens_done, uint32_t tokens) = 0;
    // Once, last: the listener may be gone when this returns.
    virtual void End(const absl::Status& status) = 0;
  };
  class UnaryReactor;
  class StreamReactor;

  void Cancel(Engine& engine);

  const model::Tokenizer& tokenizer_;
  const uint64_t key_ = Engine::NewKey();
  v1::ScoreResponse* response_ = nullptr;  // Both live until OnDone() has ended the call.
  Listener* listener_ = nullptr;

  std::mutex mutex_;  // Guards a StreamReactor's state too, which it outlives.
  bool cancelled_ = false;
};

}  // namespace lamina::coordinator
