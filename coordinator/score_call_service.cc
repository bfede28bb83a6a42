// SPDX-License-Identifier: Apache-2.0
#include "coordinator/score_call_service.h"

#include <cmath>
#include <utility>

#include "coordinator/generate_call_service.h"

namespace lamina::coordinator {

class ScoreCall::Reactor final : public grpc::ServerUnaryReactor {
 public:
  Reactor(std::shared_ptr<ScoreCall> call, Engine& engine)
      : call_(std::move(call)), engine_(engine) {}

  void OnCancel() override {
    {
      const std::lock_guard lock(call_->mutex_);
      call_->cancelled_ = true;
    }
    engine_.Cancel(call_->key_);
  }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<ScoreCall> call_;
  Engine& engine_;
};

grpc::ServerUnaryReactor* ScoreCall::Start(const std::shared_ptr<ScoreCall>& call, Engine& engine) {
  call->reactor_ = new Reactor(call, engine);
  return call->reactor_;
}

void ScoreCall::Submit(const std::shared_ptr<ScoreCall>& call, Engine& engine, GenerateSpec spec) {
  v1::ScoreResponse* const response = call->response_;
  const model::Tokenizer& tokenizer = call->tokenizer_;
  response->mutable_tokens()->Add(spec.prompt.begin(), spec.prompt.end());
  for (const TokenId token : spec.prompt) {
    const bool known = token >= 0 && static_cast<size_t>(token) < tokenizer.vocabulary_size();
    response->add_texts(known ? tokenizer.TokenBytes(token, /*skip_special=*/false) : "");
  }
  std::unique_lock lock(call->mutex_);
  if (!call->cancelled_) {  // The engine forgets a cancellation that comes before the request.
    engine.Submit(std::move(spec), call->key_, call);
    return;
  }
  lock.unlock();
  call->OnDone(absl::CancelledError("the client has gone"));
}

bool ScoreCall::IsCancelled() {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

void ScoreCall::OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) {
  double nll = 0;
  for (const float logprob : logprobs) {
    nll -= logprob;
  }
  response_->mutable_logprobs()->Add(logprobs.begin(), logprobs.end());
  response_->set_nll_sum(nll);
  response_->set_perplexity(
      logprobs.empty() ? 1.0 : std::exp(nll / static_cast<double>(logprobs.size())));
  for (const plan::TokenRank& rank : ranks) {
    v1::TokenRank* entry = response_->add_ranks();
    entry->set_rank(rank.rank);
    for (const plan::TokenLogprob& top : rank.top) {
      ToProto(top, tokenizer_, entry->add_top());
    }
  }
}

void ScoreCall::OnDone(const absl::Status& status) { reactor_->Finish(ToGrpc(status)); }

}  // namespace lamina::coordinator
