// SPDX-License-Identifier: Apache-2.0
//
// ResumingScore: a score that outlives its coordinator, as ResumingGeneration is an answer that
// does: the next coordinator makes it again, and this one waits for it.
//
// Threading: the gateway's thread.
// Limits:    kWaitMax in all; a coordinator is waited for as client::Resumption says.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "client/resumption.h"
#include "common/clock.h"
#include "gateway/backend.h"

namespace lamina::gateway {

// How one stream of a score has ended.
struct ScoreEnd {
  client::StreamEnd stream;
  bool went_on = false;  // Something had come.
  std::optional<client::ScoreResult> result = {};
};
using ScoreEndFunction = std::function<void(ScoreEnd end)>;

// What a score asks of the way to the coordinator.
class ScoreStreams {
 public:
  virtual ~ScoreStreams() = default;
  // Both end within `wait_max`. The function is called once, unless the result was before.
  virtual CancelFunction BeginScore(const client::Prompt& prompt,
                                    const client::ScoreOptions& options, Nanos wait_max,
                                    ScoreEndFunction on_end) = 0;
  virtual CancelFunction AttachScore(const client::AnswerPlace& place, Nanos wait_max,
                                     ScoreEndFunction on_end) = 0;
  // Calls it in the gateway's thread, later. It may not be called where the gateway ends.
  virtual void After(Nanos wait, std::function<void()> work) = 0;
};

class ResumingScore final : public std::enable_shared_from_this<ResumingScore> {
 public:
  static constexpr Nanos kWaitMax = Seconds(600);

  // `streams` and `clock` outlive it.
  ResumingScore(ScoreStreams& streams, const Clock& clock, AnswerFunction<client::ScoreResult> done)
      : streams_(streams),
        clock_(clock),
        resumption_(clock, /*choices=*/1),
        done_(std::move(done)) {}

  // `done` is called from now on, once, and not from inside this call.
  void Start(const client::Prompt& prompt, const client::ScoreOptions& options);
  // It is not called any more.
  void Cancel();

 private:
  void Attach();
  void TakeEnd(ScoreEnd end);

  ScoreStreams& streams_;
  const Clock& clock_;
  client::Resumption resumption_;
  AnswerFunction<client::ScoreResult> done_;  // Null once called, or cancelled.
  CancelFunction cancel_stream_;              // Null while a coordinator is waited for.
  Nanos end_at_ = 0;
};

}  // namespace lamina::gateway
