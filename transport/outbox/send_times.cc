// SPDX-License-Identifier: Apache-2.0
#include "transport/outbox/send_times.h"

namespace lamina::transport {

void SendTimes::Posted(uint64_t put, const OutboxTimes& times) {
  // Acquire: the place has been read.
  if (posted_ - taken_.load(std::memory_order_acquire) < kKept) {
    ring_[posted_ % kKept] = {.put = put, .times = times};
    ++posted_;
  }
}

void SendTimes::Complete(uint64_t puts, Nanos now) {
  uint64_t complete = complete_.load(std::memory_order_relaxed);
  for (; complete < posted_ && ring_[complete % kKept].put <= puts; ++complete) {
    ring_[complete % kKept].times.complete = now;
  }
  // Release: the entries are written.
  complete_.store(complete, std::memory_order_release);
}

std::optional<OutboxTimes> SendTimes::Take() {
  const uint64_t taken = taken_.load(std::memory_order_relaxed);
  // Acquire: the entry is written before.
  if (taken == complete_.load(std::memory_order_acquire)) {
    return std::nullopt;
  }
  const OutboxTimes times = ring_[taken % kKept].times;
  // Release: the place has been read.
  taken_.store(taken + 1, std::memory_order_release);
  return times;
}

}  // namespace lamina::transport
