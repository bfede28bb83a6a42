// SPDX-License-Identifier: Apache-2.0
//
// Histogram: counts of values by upper bounds, for metrics that are scraped.
//
// Threading: Observe from any thread, without a lock; Take from any thread. A snapshot that is
// taken while others observe may lack their latest values, and no more.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

namespace lamina {

class Histogram {
 public:
  struct Snapshot {
    std::vector<double> bounds;    // Upper ones, rising; values equal to one belong to it.
    std::vector<uint64_t> counts;  // One for each bound, and one more for what is above all.
    double sum = 0;
    uint64_t count = 0;
  };

  // Requires: `bounds` rise.
  explicit Histogram(std::vector<double> bounds);

  // Cost: a search in the bounds and two atomic additions.
  void Observe(double value) { ObserveMany(value, 1); }
  // `count` values that are all `value`.
  void ObserveMany(double value, uint64_t count);

  Snapshot Take() const;

 private:
  const std::vector<double> bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

}  // namespace lamina
