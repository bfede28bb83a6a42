// SPDX-License-Identifier: Apache-2.0
//
// Cores for the threads of a benchmark, one for each, as the daemons pin theirs: a scheduler may
// else leave two of them on one core, and the figures are those of one thread.

#pragma once

#include <cstddef>
#include <vector>

#include "common/cores.h"
#include "common/thread_pool.h"

namespace lamina::bench {

// Pins the calling thread, and returns the cores for a pool that it calls: the first that it may
// run on. Threads that are started later, by OpenMP too, begin on its core: pin them elsewhere.
// Empty, and nothing is pinned: one thread, or more than there are cores. Once in a process.
inline std::vector<int> PinnedCores(size_t threads) {
  constexpr int kCoresMax = 1024;
  std::vector<int> cores;
  for (int core = 0; core < kCoresMax && cores.size() < threads; ++core) {
    if (CoresMissing({core}).empty()) {
      cores.push_back(core);
    }
  }
  if (threads < 2 || cores.size() < threads ||
      !PinThisThread(CallerCores({.threads = threads, .cores = cores}))) {
    return {};
  }
  return cores;
}

}  // namespace lamina::bench
