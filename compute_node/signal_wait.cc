// SPDX-License-Identifier: Apache-2.0
#include "compute_node/signal_wait.h"

#include <algorithm>
#include <utility>

#include "common/thread_beat.h"
#include "control/blame.h"

namespace lamina::compute_node {

void SignalWait::Clear() {
  signals_.clear();
  conditions_.clear();
  deadline_ = INT64_MAX;
}

void SignalWait::Expect(Nanos since, Nanos timeout) {
  for (size_t i = conditions_.size(); i < signals_.size(); ++i) {
    conditions_.push_back({.word = signals_[i].word, .at_least = signals_[i].value});
    if (since + timeout < deadline_) {
      deadline_ = since + timeout;
      timeout_ = timeout;
      peer_ = signals_[i].peer;
    }
  }
}

absl::Status SignalWait::Wait(Nanos pause, const transport::AbortWord& abort) {
  const Nanos until = std::min(deadline_, RealClock().Now() + pause);
  const absl::StatusOr<size_t> ready =
      context_.transport.Wait(context_.region, conditions_, {.deadline = until, .abort = &abort});
  if (!signals_.empty()) {
    // The thread has stood still for this one, or for one of several of which nothing came.
    const PeerId peer = signals_[ready.ok() ? *ready : 0].peer;
    context_.peers.CountWait(
        peer, context_.intervals.EndInterval({.part = peer >= telemetry::TraceEvent::kMemoryPeer
                                                          ? telemetry::WorkKind::kWaitAttention
                                                          : telemetry::WorkKind::kWaitReplica,
                                              .peer = peer}));
  }
  if (ready.ok()) {
    return absl::OkStatus();
  }
  if (absl::IsDeadlineExceeded(ready.status())) {
    return RealClock().Now() < deadline_ ? CheckPeers()
                                         : context_.peers.NothingFrom(peer_, timeout_);
  }
  return signals_.empty() ? ready.status()
                          : control::Blame(ready.status(), context_.peers.Name(peer_));
}

// Nothing is put to who is waited for, which would tell. Who leaves the epoch is gone too, and this
// node is about to hear that it is over: one look is not enough.
absl::Status SignalWait::CheckPeers() {
  const Nanos now = RealClock().Now();
  if (now < look_at_) {
    return absl::OkStatus();
  }
  look_at_ = now + ThreadBeat::kNapMost;
  absl::Status there;
  for (const AwaitedSignal& signal : signals_) {
    there.Update(context_.peers.CheckThere(signal.peer));
  }
  return std::exchange(found_gone_, !there.ok()) ? there : absl::OkStatus();
}

absl::Status SignalWait::CheckDeadline() const {
  if (RealClock().Now() < deadline_) {
    return absl::OkStatus();
  }
  const bool any_here = std::any_of(
      conditions_.begin(), conditions_.end(), [this](const transport::SignalCondition& condition) {
        return context_.region.LoadSignal(condition.word) >= condition.at_least;
      });
  return any_here ? absl::OkStatus() : context_.peers.NothingFrom(peer_, timeout_);
}

}  // namespace lamina::compute_node
