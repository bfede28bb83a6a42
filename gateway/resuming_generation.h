// SPDX-License-Identifier: Apache-2.0
//
// ResumingGeneration: a generation that outlives its coordinator. Where the stream of an answer
// breaks off, and the coordinator had said that it journals the request, it waits for a coordinator
// to come back, and goes on behind the tokens that it has. Who reads the answer sees a pause.
//
// Threading: the gateway's thread.
// Limits:    those of client::Resumption.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "client/resumption.h"
#include "common/clock.h"
#include "gateway/backend.h"

namespace lamina::gateway {

using client::AnswerPlace;
using client::StreamEnd;
using EndFunction = std::function<void(const StreamEnd& end)>;

// What a generation asks of the way to the coordinator.
class AnswerStreams {
 public:
  virtual ~AnswerStreams() = default;
  // Does what Backend::Generate() does.
  virtual std::shared_ptr<Generation> Begin(const client::GenerateOptions& options,
                                            client::ChunkFunction on_chunk, EndFunction on_end) = 0;
  virtual std::shared_ptr<Generation> Attach(const AnswerPlace& place,
                                             client::ChunkFunction on_chunk,
                                             EndFunction on_end) = 0;
  // Calls it in the gateway's thread, later. It may not be called where the gateway ends.
  virtual void After(Nanos wait, std::function<void()> work) = 0;
};

class ResumingGeneration final : public Generation,
                                 public std::enable_shared_from_this<ResumingGeneration> {
 public:
  // `streams` and `clock` outlive it. `choices`: so many come.
  ResumingGeneration(AnswerStreams& streams, const Clock& clock, uint32_t choices,
                     client::ChunkFunction on_chunk, client::DoneFunction on_done)
      : streams_(streams),
        resumption_(clock, choices),
        on_chunk_(std::move(on_chunk)),
        on_done_(std::move(on_done)) {}

  void Start(const client::GenerateOptions& options);
  void Next() override;
  void Cancel() override;

 private:
  void Attach();
  void TakeChunk(const client::Chunk& chunk);
  void TakeEnd(const StreamEnd& end);
  void Finish(const absl::Status& status);

  AnswerStreams& streams_;
  client::Resumption resumption_;
  client::ChunkFunction on_chunk_;
  client::DoneFunction on_done_;
  std::shared_ptr<Generation> stream_;  // Null while a coordinator is waited for.
  bool asked_ = false;                  // The chunk has not come yet.
  bool cancelled_ = false;
};

}  // namespace lamina::gateway
