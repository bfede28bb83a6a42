// SPDX-License-Identifier: Apache-2.0
#include "common/cores.h"

#include <pthread.h>
#include <sched.h>

#include <cstddef>

namespace lamina {

std::vector<int> CoresMissing(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> missing;
  if (pthread_getaffinity_np(pthread_self(), sizeof(set), &set) != 0) {
    return missing;
  }
  for (const int core : cores) {
    if (core < 0 || core >= CPU_SETSIZE || !CPU_ISSET(static_cast<size_t>(core), &set)) {
      missing.push_back(core);
    }
  }
  return missing;
}

}  // namespace lamina
