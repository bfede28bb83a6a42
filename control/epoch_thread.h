// SPDX-License-Identifier: Apache-2.0
//
// EpochThread: the data thread of a node in one epoch: pinned to its cores; how it ends goes to the
// coordinator.
//
// Threading: Start() and Join() from one thread.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "control/node_handler.h"

namespace lamina::control {

class EpochThread {
 public:
  // Works until it is told to stop (OK), or until something is wrong; `blamed` then names the peer,
  // if one.
  using Work = std::function<absl::Status(std::string& blamed)>;

  // Reports an error of `work` as a fault. `reporter` may be null; no cores pin nothing.
  void Start(const std::vector<int>& cores, uint64_t epoch, Work work, NodeReporter* reporter);
  // Waits until `work`, which was told to stop, has returned. One that does not within `most` is
  // stuck, with windows and the arena in its hands: this process logs that and exits with status 1,
  // so that its supervisor starts it anew. No destructor runs.
  void Join(std::chrono::nanoseconds most = kEndMax);

  // The longest that work goes on without looking at its abort word is an op of one chunk.
  static constexpr std::chrono::seconds kEndMax{10};

 private:
  std::thread thread_;
  std::future<void> ended_;
};

}  // namespace lamina::control
