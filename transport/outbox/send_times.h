// SPDX-License-Identifier: Apache-2.0
//
// SendTimes: when the sends of an outbox were raised, posted and complete: a ring that a proxy
// fills, and the thread of the transport empties.
//
// Puts are numbered from 1 on, in the order in which they were posted. They are complete in that
// order too, or are taken to be: of a transport only their number is known.
//
// Threading:  Want() and Take() by one thread, the rest by another one.
// Allocation: none. Limits: kKept; those that find no room are dropped.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "common/clock.h"
#include "common/outbox.h"

namespace lamina::transport {

class SendTimes {
 public:
  static constexpr uint64_t kKept = 256;

  void Want(bool wanted) { wanted_.store(wanted, std::memory_order_relaxed); }
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }

  // The put of that number was posted.
  void Posted(uint64_t put, const OutboxTimes& times);

  // Whether a put that was told of by Posted() is not complete.
  bool in_flight() const { return posted_ != complete_.load(std::memory_order_relaxed); }

  // So many puts were complete at `now`.
  void Complete(uint64_t puts, Nanos now);

  // The oldest one that is complete.
  std::optional<OutboxTimes> Take();

 private:
  struct Entry {
    uint64_t put = 0;
    OutboxTimes times;
  };

  std::atomic<bool> wanted_{false};
  std::array<Entry, kKept> ring_;
  uint64_t posted_ = 0;                            // Entries ever; the proxy's.
  alignas(64) std::atomic<uint64_t> complete_{0};  // How many of them; the proxy writes it.
  alignas(64) std::atomic<uint64_t> taken_{0};     // How many; whoever takes writes it.
};

}  // namespace lamina::transport
