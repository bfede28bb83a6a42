// SPDX-License-Identifier: Apache-2.0
//
// EpochThread: the data thread of a node in one epoch: named kName, pinned to its cores; how it
// ends goes to the coordinator, and its beat says whether there is one.
//
// Threading: Start() and Join() from one thread.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/thread_beat.h"
#include "control/node_handler.h"

namespace lamina::control {

class EpochThread {
 public:
  // As the kernel shows it (/proc/PID/task/TID/comm).
  static constexpr char kName[] = "lamina-data";

  // `beat` must outlive this; `work` writes it while it works. `steps`: another count that rises
  // while it gets on, within what it does between beats.
  explicit EpochThread(ThreadBeat& beat, std::function<uint64_t()> steps = nullptr)
      : beat_(beat), steps_(std::move(steps)) {}

  // Works until it is told to stop (OK), or until something is wrong: an error that names the peer
  // that it blames, if any (control/blame.h).
  using Work = std::function<absl::Status()>;

  // Reports an error of `work` as a fault. `reporter` may be null; no cores pin nothing.
  void Start(const std::vector<int>& cores, uint64_t epoch, Work work, NodeReporter* reporter);
  // Waits until `work`, which was told to stop, has returned: it may be in the middle of attention
  // over a long prompt, which does not look. One that has not got on for `most`, or has not ended
  // after kEndsAtMost times as long, is stuck, with windows and the arena in its hands: this
  // process logs that and exits with status 1, so that its supervisor starts it anew. No destructor
  // runs.
  void Join(std::chrono::nanoseconds most = kEndMax);

  static constexpr std::chrono::seconds kEndMax{10};
  static constexpr int kEndsAtMost = 30;

 private:
  uint64_t Moves() const { return beat_.beats() + (steps_ == nullptr ? 0 : steps_()); }

  ThreadBeat& beat_;
  const std::function<uint64_t()> steps_;
  std::thread thread_;
  std::future<void> ended_;
};

}  // namespace lamina::control
