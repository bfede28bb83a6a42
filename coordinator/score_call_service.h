// SPDX-License-Identifier: Apache-2.0
//
// ScoreCall: one Score call of the Inference service. The engine's sink and the reactor share it.
//
// Threading: as written beside the functions; a mutex decides between the request and the end of
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
  // `response` must live until the call is done.
  ScoreCall(const model::Tokenizer& tokenizer, v1::ScoreResponse* response)
      : tokenizer_(tokenizer), response_(response) {}

  // The reactor of the call, which keeps it. A client that goes, or whose deadline has passed,
  // cancels the request.
  static grpc::ServerUnaryReactor* Start(const std::shared_ptr<ScoreCall>& call, Engine& engine);

  // Any thread, once, after Start(): gives the request, with its tokens and their texts in the
  // answer, to the engine, or ends the call of a client that has gone.
  static void Submit(const std::shared_ptr<ScoreCall>& call, Engine& engine, GenerateSpec spec);
  bool IsCancelled();

  void OnAccepted(const std::string&) override {}
  void OnOutput(ChoiceOutput) override {}
  void OnProgress(uint32_t) override {}
  void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) override;
  void OnDone(const absl::Status& status) override;

 private:
  class Reactor;

  const model::Tokenizer& tokenizer_;
  v1::ScoreResponse* const response_;
  const uint64_t key_ = Engine::NewKey();
  grpc::ServerUnaryReactor* reactor_ = nullptr;  // Lives until OnDone() has finished the call.

  std::mutex mutex_;
  bool cancelled_ = false;
};

}  // namespace lamina::coordinator
