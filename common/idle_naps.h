// SPDX-License-Identifier: Apache-2.0
//
// IdleNaps: how long a thread sleeps between two looks for messages that wake nobody. A nap is what
// a message may wait for it, and each costs a core some microseconds: naps are short while messages
// come, and long when none has come for a second.
//
// Threading: any number of threads; each may see what others noted a nap later.

#pragma once

#include <atomic>
#include <chrono>

#include "common/clock.h"

namespace lamina {

class IdleNaps {
 public:
  static constexpr std::chrono::microseconds kShort{50};
  static constexpr std::chrono::microseconds kLong{500};
  static constexpr Nanos kShortFor = Seconds(1);

  // A message came. Cost: a store.
  void Came() { came_.store(true, std::memory_order_relaxed); }

  // The next nap. `now` does not go back.
  std::chrono::microseconds Next(Nanos now) {
    if (came_.load(std::memory_order_relaxed)) {
      came_.store(false, std::memory_order_relaxed);
      since_.store(now, std::memory_order_relaxed);
    }
    return now - since_.load(std::memory_order_relaxed) < kShortFor ? kShort : kLong;
  }

 private:
  std::atomic<bool> came_{true};
  std::atomic<Nanos> since_{0};
};

}  // namespace lamina
