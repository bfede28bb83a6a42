// SPDX-License-Identifier: Apache-2.0
#include "gateway/resuming_generation.h"

#include "common/log.h"

namespace lamina::gateway {

void ResumingGeneration::Start(const client::GenerateOptions& options) {
  const auto self = shared_from_this();
  stream_ = streams_.Begin(
      options, [self](const client::Chunk& chunk) { self->TakeChunk(chunk); },
      [self](const StreamEnd& end) { self->TakeEnd(end); });
}

void ResumingGeneration::Attach() {
  if (cancelled_) {
    return;
  }
  const auto self = shared_from_this();
  place_.digest = digest_.value();
  stream_ = streams_.Attach(
      place_, [self](const client::Chunk& chunk) { self->TakeChunk(chunk); },
      [self](const StreamEnd& end) { self->TakeEnd(end); });
  if (asked_) {
    stream_->Next();
  }
}

void ResumingGeneration::Next() {
  asked_ = true;
  if (stream_ != nullptr) {
    stream_->Next();
  }
}

void ResumingGeneration::Cancel() {
  cancelled_ = true;
  on_chunk_ = nullptr;
  on_done_ = nullptr;
  if (stream_ != nullptr) {
    std::exchange(stream_, nullptr)->Cancel();
  }
}

void ResumingGeneration::TakeChunk(const client::Chunk& chunk) {
  if (cancelled_) {
    return;
  }
  asked_ = false;
  broken_.reset();
  for (const client::TokenOutput& token : chunk.tokens) {
    digest_.AddWord(static_cast<uint32_t>(token.token));
    ++place_.index;
  }
  has_finish_ = has_finish_ || chunk.finish_reason != client::FinishReason::kNotFinished;
  // A copy: what it calls may cancel this.
  const client::ChunkFunction on_chunk = on_chunk_;
  on_chunk(chunk);
}

void ResumingGeneration::TakeEnd(const StreamEnd& end) {
  stream_ = nullptr;
  if (cancelled_) {
    return;
  }
  if (!end.journaled_id.empty()) {
    place_.request_id = end.journaled_id;
  }
  const bool can_attach = end.broke_off && !place_.request_id.empty();
  if (can_attach && has_finish_) {
    return Finish(absl::OkStatus());  // Only the word that nothing follows is missing.
  }
  if (!can_attach) {
    // The next coordinator does not know it: what broke off the stream before says more.
    return Finish(absl::IsNotFound(end.status) && broken_.has_value() ? *broken_ : end.status);
  }
  if (!broken_.has_value()) {
    LogInfo("request ", place_.request_id, " broke off behind ", place_.index,
            " tokens; waiting for the coordinator");
    broken_ = end.status;
    wait_until_ = clock_.Now() + kWaitMax;
  }
  Retry();
}

void ResumingGeneration::Retry() {
  if (clock_.Now() >= wait_until_) {
    return Finish(*broken_);
  }
  streams_.After(kRetry, [self = shared_from_this()] { self->Attach(); });
}

void ResumingGeneration::Finish(const absl::Status& status) {
  on_chunk_ = nullptr;
  if (const client::DoneFunction done = std::exchange(on_done_, nullptr); done != nullptr) {
    done(status);
  }
}

}  // namespace lamina::gateway
