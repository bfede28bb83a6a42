// SPDX-License-Identifier: Apache-2.0
//
// EpochThread: the data thread of a node in one epoch: pinned to its cores; how it ends goes to the
// coordinator.
//
// Threading: Start() and Join() from one thread.

#pragma once

#include <cstdint>
#include <functional>
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
  void Join();

 private:
  std::thread thread_;
};

}  // namespace lamina::control
