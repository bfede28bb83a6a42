// SPDX-License-Identifier: Apache-2.0
#include "gateway/resuming_generation.h"

#include <optional>

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
  stream_ = streams_.Attach(
      resumption_.place(), [self](const client::Chunk& chunk) { self->TakeChunk(chunk); },
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
  if (!resumption_.Take(chunk)) {
    stream_->Next();
    return;
  }
  asked_ = false;
  // A copy: what it calls may cancel this.
  const client::ChunkFunction on_chunk = on_chunk_;
  on_chunk(chunk);
}

void ResumingGeneration::TakeEnd(const StreamEnd& end) {
  stream_ = nullptr;
  if (cancelled_) {
    return;
  }
  const bool waited = resumption_.waits();
  if (const std::optional<absl::Status> status = resumption_.End(end); status.has_value()) {
    return Finish(*status);
  }
  if (!waited) {
    LogInfo("request ", resumption_.place().request_id, " broke off behind ", resumption_.tokens(),
            " tokens; waiting for the coordinator");
  }
  streams_.After(resumption_.Pause(), [self = shared_from_this()] { self->Attach(); });
}

void ResumingGeneration::Finish(const absl::Status& status) {
  on_chunk_ = nullptr;
  if (const client::DoneFunction done = std::exchange(on_done_, nullptr); done != nullptr) {
    done(status);
  }
}

}  // namespace lamina::gateway
