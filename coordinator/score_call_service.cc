// SPDX-License-Identifier: Apache-2.0
#include "coordinator/score_call_service.h"

#include <cmath>
#include <utility>

#include "common/trace_context.h"
#include "coordinator/generate_call_service.h"

namespace lamina::coordinator {

class ScoreCall::UnaryReactor final : public grpc::ServerUnaryReactor, public ScoreCall::Listener {
 public:
  UnaryReactor(std::shared_ptr<ScoreCall> call, Engine& engine)
      : call_(std::move(call)), engine_(engine) {}

  void OnCancel() override { call_->Cancel(engine_); }
  void OnDone() override { delete this; }

  void SendMetadata() override { StartSendInitialMetadata(); }
  void TakeProgress(uint32_t, uint32_t) override {}
  void End(const absl::Status& status) override { Finish(ToGrpc(status)); }

 private:
  const std::shared_ptr<ScoreCall> call_;
  Engine& engine_;
};

// One write at a time; of progress only the latest waits. All state is guarded by the call's mutex.
class ScoreCall::StreamReactor final : public grpc::ServerWriteReactor<v1::ScoreUpdate>,
                                       public ScoreCall::Listener {
 public:
  StreamReactor(std::shared_ptr<ScoreCall> call, Engine& engine)
      : call_(std::move(call)), engine_(engine) {}

  v1::ScoreResponse* result() { return last_.mutable_result(); }

  void OnCancel() override { call_->Cancel(engine_); }
  void OnWriteDone(bool ok) override {
    const std::shared_ptr<ScoreCall> call = call_;  // Outlives this, and so its mutex does.
    if (!ok) {
      call->Cancel(engine_);
    }
    const std::lock_guard lock(call->mutex_);
    writing_ = false;
    Pump();
  }
  void OnDone() override {
    const std::shared_ptr<ScoreCall> call = call_;
    { const std::lock_guard lock(call->mutex_); }  // Whoever ended it has left Pump().
    delete this;
  }

  void SendMetadata() override {
    const std::lock_guard lock(call_->mutex_);
    StartSendInitialMetadata();
  }
  void TakeProgress(uint32_t tokens_done, uint32_t tokens) override {
    const std::lock_guard lock(call_->mutex_);
    waits_ = true;
    done_ = tokens_done;
    all_ = tokens;
    Pump();
  }
  void End(const absl::Status& status) override {
    const std::shared_ptr<ScoreCall> call = call_;
    const std::lock_guard lock(call->mutex_);
    status_ = status;
    ended_ = true;
    Pump();
  }

 private:
  void Pump() {
    if (writing_ || finishing_) {
      return;
    }
    if (ended_) {
      finishing_ = true;
      if (status_.ok()) {
        StartWriteAndFinish(&last_, {}, ToGrpc(status_));
      } else {
        Finish(ToGrpc(status_));
      }
    } else if (waits_) {
      waits_ = false;
      writing_ = true;
      update_.set_tokens_done(done_);
      update_.set_tokens(all_);
      StartWrite(&update_);
    }
  }

  const std::shared_ptr<ScoreCall> call_;
  Engine& engine_;
  v1::ScoreUpdate update_;  // On its way while writing_.
  v1::ScoreUpdate last_;
  bool waits_ = false;  // Progress that is not written yet:
  uint32_t done_ = 0;
  uint32_t all_ = 0;
  absl::Status status_;
  bool ended_ = false;
  bool writing_ = false;
  bool finishing_ = false;
};

grpc::ServerUnaryReactor* ScoreCall::Start(const std::shared_ptr<ScoreCall>& call, Engine& engine,
                                           v1::ScoreResponse* response) {
  auto* reactor = new UnaryReactor(call, engine);
  call->response_ = response;
  call->listener_ = reactor;
  return reactor;
}

grpc::ServerWriteReactor<v1::ScoreUpdate>* ScoreCall::StartStream(
    const std::shared_ptr<ScoreCall>& call, Engine& engine) {
  auto* reactor = new StreamReactor(call, engine);
  call->response_ = reactor->result();
  call->listener_ = reactor;
  return reactor;
}

void ScoreCall::Cancel(Engine& engine) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  engine.Cancel(key_);
}

bool ScoreCall::IsCancelled() {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

void ScoreCall::SetPrompt(const std::vector<TokenId>& prompt) {
  response_->mutable_tokens()->Add(prompt.begin(), prompt.end());
  for (const TokenId token : prompt) {
    const bool known = token >= 0 && static_cast<size_t>(token) < tokenizer_.vocabulary_size();
    response_->add_texts(known ? tokenizer_.TokenBytes(token, /*skip_special=*/false) : "");
  }
}

void ScoreCall::Submit(const std::shared_ptr<ScoreCall>& call, Engine& engine, GenerateSpec spec) {
  call->SetPrompt(spec.prompt);
  std::shared_ptr<RequestSink> sink = call;
  if (call->journaled_ != nullptr) {
    sink = RecordedSink(spec, std::move(sink), call->journaled_);
  }
  std::unique_lock lock(call->mutex_);
  if (!call->cancelled_) {  // The engine forgets a cancellation that comes before the request.
    engine.Submit(std::move(spec), call->key_, std::move(sink));
    return;
  }
  lock.unlock();
  call->OnDone(absl::CancelledError("the client has gone"));
}

void ScoreCall::OnAccepted(const std::string& request_id) {
  if (followed_id_.empty()) {
    followed_id_ = request_id;
  }
  if (journaled_ != nullptr && journaled_->is_recorded()) {
    context_->AddInitialMetadata(kJournaledHeader, request_id);
    listener_->SendMetadata();
  }
}

// A score generates nothing: what comes is its end.
void ScoreCall::OnOutput(ChoiceOutput output) {
  response_->set_lossy(std::move(output.usage.lossy));
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

void ScoreCall::OnProgress(uint32_t tokens_done) {
  listener_->TakeProgress(tokens_done, static_cast<uint32_t>(response_->tokens_size()));
}

// A call whose end names no request has broken off, to its client.
void ScoreCall::OnDone(const absl::Status& status) {
  if (IsRequestId(followed_id_)) {
    context_->AddTrailingMetadata(kRequestIdHeader, followed_id_);
  }
  listener_->End(status);
}

}  // namespace lamina::coordinator
