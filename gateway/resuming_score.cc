// SPDX-License-Identifier: Apache-2.0
#include "gateway/resuming_score.h"

#include "common/log.h"

namespace lamina::gateway {

void ResumingScore::Start(const client::Prompt& prompt, const client::ScoreOptions& options) {
  end_at_ = clock_.Now() + kWaitMax;
  cancel_stream_ = streams_.BeginScore(
      prompt, options, kWaitMax,
      [self = shared_from_this()](ScoreEnd end) { self->TakeEnd(std::move(end)); });
}

void ResumingScore::Attach() {
  if (done_ == nullptr) {
    return;
  }
  cancel_stream_ = streams_.AttachScore(
      resumption_.place(), end_at_ - clock_.Now(),
      [self = shared_from_this()](ScoreEnd end) { self->TakeEnd(std::move(end)); });
}

void ResumingScore::Cancel() {
  done_ = nullptr;
  if (const CancelFunction cancel = std::exchange(cancel_stream_, nullptr); cancel != nullptr) {
    cancel();
  }
}

void ResumingScore::TakeEnd(ScoreEnd end) {
  cancel_stream_ = nullptr;
  if (done_ == nullptr) {
    return;
  }
  if (end.result.has_value()) {
    std::exchange(done_, nullptr)(*std::move(end.result));
    return;
  }
  if (end.went_on) {
    resumption_.TakeProgress();
  }
  const bool waited = resumption_.waits();
  if (const std::optional<absl::Status> status = resumption_.End(end.stream); status.has_value()) {
    std::exchange(done_, nullptr)(
        status->ok() ? absl::InternalError("the coordinator ended a score without its result")
                     : *status);
    return;
  }
  if (!waited) {
    LogInfo("score ", resumption_.place().request_id, " broke off; waiting for the coordinator");
  }
  streams_.After(resumption_.Pause(), [self = shared_from_this()] { self->Attach(); });
}

}  // namespace lamina::gateway
