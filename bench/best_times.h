// SPDX-License-Identifier: Apache-2.0
//
// The best time of each of several bodies, taken in turns: other work on the machine disturbs them
// alike.

#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

namespace lamina::bench {

inline double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Seconds of one call. A round of a body takes about 3 ms, 1 to 2,000 calls, each with its number.
inline std::vector<double> BestTimes(const std::vector<std::function<void(size_t)>>& bodies,
                                     int rounds) {
  constexpr double kSecondsPerRound = 0.003;
  std::vector<double> best(bodies.size(), 1e9);
  for (int round = 0; round < rounds; ++round) {
    for (size_t b = 0; b < bodies.size(); ++b) {
      const double first = Seconds([&] { bodies[b](0); });
      const auto calls = static_cast<size_t>(std::clamp(kSecondsPerRound / first, 1.0, 2000.0));
      const double all = Seconds([&] {
        for (size_t call = 0; call < calls; ++call) {
          bodies[b](call);
        }
      });
      best[b] = std::min(best[b], all / static_cast<double>(calls));
    }
  }
  return best;
}

}  // namespace lamina::bench
