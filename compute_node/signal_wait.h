// SPDX-License-Identifier: Apache-2.0
//
// SignalWait: signals of peers that a thread waits for, each with a time by which it must have
// come. The thread sleeps in the transport until one of them is there.
//
// Threading: the data thread. Allocation: none once the vectors have grown.

#pragma once

#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "compute_node/worker_context.h"
#include "transport/transport.h"

namespace lamina::compute_node {

class SignalWait {
 public:
  // The context must outlive this.
  explicit SignalWait(const WorkerContext& context) : context_(context) {}

  void Clear();

  // Signals are appended here; they become part of the wait with the next Expect().
  std::vector<AwaitedSignal>& signals() { return signals_; }

  // The signals appended since the last call have been awaited since `since`, and are given up
  // `timeout` later.
  void Expect(Nanos since, Nanos timeout);

  // Waits until a signal has come, `pause` is over or `abort` is raised.
  // Errors: as Peers::NothingFrom(), of the first to be given up; as CheckPeers(); kCancelled; the
  // transport's.
  absl::Status Wait(Nanos pause, const transport::AbortWord& abort);

  // Says whether somebody is to be given up now. It does not wait, and counts no time.
  // Errors: as Peers::NothingFrom().
  absl::Status CheckDeadline() const;

  // Looks whether a peer whose signal is awaited is known to be gone, ten times a second at most.
  // Errors: as Peers::CheckThere(), of what two looks in a row have found.
  absl::Status CheckPeers();

 private:
  const WorkerContext& context_;
  std::vector<AwaitedSignal> signals_;
  std::vector<transport::SignalCondition> conditions_;  // Parallel to signals_.
  // The signal that is given up first: when, after how long, and whose it is.
  Nanos deadline_ = INT64_MAX;
  Nanos timeout_ = 0;
  PeerId peer_ = 0;
  Nanos look_at_ = 0;        // CheckPeers() looks next.
  bool found_gone_ = false;  // Its last look has found somebody gone.
};

}  // namespace lamina::compute_node
