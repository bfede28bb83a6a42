// SPDX-License-Identifier: Apache-2.0
//
// FastestExchange: the shortest time of late in which something went to a peer and its answer came
// back. Half of it is an upper bound of the link's latency, and the bytes of both ways over it are
// a lower bound of its bandwidth, whatever the peer did in between: a link cannot be worse than
// what was just done over it.
//
// Threading: Note() and Forget() from one thread at a time; reading from any.
// Cost: of Note() some comparisons.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace lamina::telemetry {

class FastestExchange {
 public:
  // What is shown is of the last one to two of these.
  static constexpr Nanos kWindow = Seconds(10);

  // An exchange of `bytes`, both ways together, took `took` and ended at `now`. Requires: took > 0.
  void Note(Nanos now, Nanos took, uint64_t bytes) {
    if (now >= window_end_) {
      windows_[1] = windows_[0];
      windows_[0] = {};
      window_end_ = now + kWindow;
    }
    Best& best = windows_[0];
    best.nanos = best.nanos == 0 ? took : std::min(best.nanos, took);
    best.rate = std::max(best.rate, static_cast<double>(bytes) / ToSeconds(took));
    const Nanos before = windows_[1].nanos;
    Show(before == 0 ? best.nanos : std::min(before, best.nanos),
         std::max(best.rate, windows_[1].rate));
  }

  // The link is another one from now on.
  void Forget() {
    windows_ = {};
    window_end_ = 0;
    Show(0, 0);
  }

  // 0: there was none.
  double seconds() const { return ToSeconds(nanos_.load(std::memory_order_relaxed)); }
  // The most bytes a second of any of them; 0: there was none.
  double bytes_per_second() const { return rate_.load(std::memory_order_relaxed); }

 private:
  struct Best {
    Nanos nanos = 0;
    double rate = 0;
  };

  void Show(Nanos nanos, double rate) {
    nanos_.store(nanos, std::memory_order_relaxed);
    rate_.store(rate, std::memory_order_relaxed);
  }

  std::array<Best, 2> windows_ = {};  // This one, and the one before.
  Nanos window_end_ = 0;
  std::atomic<Nanos> nanos_{0};
  std::atomic<double> rate_{0};
};

}  // namespace lamina::telemetry
