// SPDX-License-Identifier: Apache-2.0
#include "common/cores.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace lamina {

std::vector<int> CoresOfThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> allowed;
  if (pthread_getaffinity_np(pthread_self(), sizeof(set), &set) != 0) {
    return allowed;
  }
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &set)) {
      allowed.push_back(core);
    }
  }
  return allowed;
}

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

std::vector<int> CoresBut(const std::vector<int>& cores) {
  std::vector<int> others;
  for (const int core : CoresOfThread()) {
    if (std::find(cores.begin(), cores.end(), core) == cores.end()) {
      others.push_back(core);
    }
  }
  return others;
}

absl::Status CheckThreads(absl::string_view what, size_t threads) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (pthread_getaffinity_np(pthread_self(), sizeof(set), &set) != 0) {
    return absl::OkStatus();
  }
  const auto cores = static_cast<size_t>(CPU_COUNT(&set));
  const size_t most = std::max<size_t>(kThreadsAlways, cores * kThreadsPerCoreMax);
  if (threads <= most) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": ", threads, " is more than ", most, ", the most for the ", cores,
      cores == 1 ? " core" : " cores", " that this process may use; as many as cores are fastest"));
}

}  // namespace lamina
