// SPDX-License-Identifier: Apache-2.0
//
// TokenRate: tokens a second over the last ten seconds, from a count that only grows.
//
// Threading: one thread.
// Limits: at most some hundred entries, one for each tenth of a second.

#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "common/clock.h"

namespace lamina::coordinator {

class TokenRate {
 public:
  static constexpr Nanos kWindow = Seconds(10);

  // So many tokens so far.
  void Count(Nanos now, uint64_t tokens) {
    if (counts_.empty() || now - counts_.back().at > kWindow / 100) {
      counts_.push_back({.at = now, .tokens = tokens});
    }
    counted_ = now;
    Forget(now);
  }

  // Tokens a second; 0 where none was counted in the window, whatever came right behind the last
  // entry. In the first second the rate is as if it had passed.
  double PerSecond(Nanos now, uint64_t tokens) {
    Forget(now);
    if (counts_.empty() || now <= counts_.front().at || now - counted_ > kWindow) {
      return 0;
    }
    return static_cast<double>(tokens - counts_.front().tokens) /
           ToSeconds(std::max(now - counts_.front().at, Seconds(1)));
  }

 private:
  struct Entry {
    Nanos at = 0;
    uint64_t tokens = 0;
  };

  void Forget(Nanos now) {
    while (counts_.size() > 1 && now - counts_.front().at > kWindow) {
      counts_.pop_front();
    }
  }

  std::deque<Entry> counts_;
  Nanos counted_ = 0;  // The last time.
};

}  // namespace lamina::coordinator
