// SPDX-License-Identifier: Apache-2.0
//
// ResumingGeneration: a generation that outlives its coordinator. Where the stream of an answer
// breaks off, and the coordinator had said that it journals the request, it waits for a coordinator
// to come back, and goes on behind the tokens that it has. Who reads the answer sees a pause.
//
// Threading: the gateway's thread.
// Limits:    the coordinator is waited for up to kWaitMax, then the generation ends with the error
//            with which the stream broke off.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/fnv1a.h"
#include "gateway/backend.h"

namespace lamina::gateway {

// How a stream has ended.
struct StreamEnd {
  absl::Status status;
  bool broke_off = false;    // The coordinator did not end it.
  std::string journaled_id;  // By which one may attach; empty: one may not.
};
using EndFunction = std::function<void(const StreamEnd& end)>;

// Where an answer goes on.
struct AnswerPlace {
  std::string request_id;
  uint32_t index = 0;   // Tokens that there are.
  uint64_t digest = 0;  // FNV-1a of their ids.
};

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
  static constexpr Nanos kWaitMax = Seconds(30);
  static constexpr Nanos kRetry = Millis(250);

  // `streams` and `clock` outlive it.
  ResumingGeneration(AnswerStreams& streams, const Clock& clock, client::ChunkFunction on_chunk,
                     client::DoneFunction on_done)
      : streams_(streams),
        clock_(clock),
        on_chunk_(std::move(on_chunk)),
        on_done_(std::move(on_done)) {}

  void Start(const client::GenerateOptions& options);
  void Next() override;
  void Cancel() override;

 private:
  void Attach();
  void TakeChunk(const client::Chunk& chunk);
  void TakeEnd(const StreamEnd& end);
  void Retry();
  void Finish(const absl::Status& status);

  AnswerStreams& streams_;
  const Clock& clock_;
  client::ChunkFunction on_chunk_;
  client::DoneFunction on_done_;
  std::shared_ptr<Generation> stream_;  // Null while a coordinator is waited for.
  bool asked_ = false;                  // The chunk has not come yet.
  bool cancelled_ = false;
  bool has_finish_ = false;  // The last chunk of the answer has come.
  AnswerPlace place_;
  Fnv1a digest_;
  // Since the stream broke off, until the next chunk: the error, and how long to wait.
  std::optional<absl::Status> broken_;
  Nanos wait_until_ = 0;
};

}  // namespace lamina::gateway
