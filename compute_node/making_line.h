// SPDX-License-Identifier: Apache-2.0
//
// MakingLine: how long it takes to make K and V of a layer's tokens from their activations, as a
// straight line over tokens (T_kv_gen of HybridServe, hybridserve.txt 4.3.2), fitted to what was
// measured at start and to layers since.
//
// The latest few samples between two powers of two count, so that one size that comes all the time
// does not drown the others. Sizes that have not come for long do not count any more: the processor
// may have become slower or faster since.
//
// Threading: one thread.   Memory: fixed.   Cost: Add() O(1), Fit() O(samples).

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "policy/fetch_hybrid.h"

namespace lamina::compute_node {

class MakingLine {
 public:
  // Requires: tokens > 0.
  void Add(uint32_t tokens, double seconds);

  // Nothing: there is no sample. Sizes that differ by less than a factor of two say nothing of what
  // a size of zero takes: the line goes through the origin then, and its R squared is of the times
  // and not of their distances from the mean.
  std::optional<policy::FittedLine> Fit() const;

 private:
  static constexpr size_t kLatest = 8;    // Samples of a bucket.
  static constexpr size_t kBuckets = 32;  // One for each power of two.
  // A bucket without one of so many latest samples is empty. They are some 30 steps of 32 layers.
  static constexpr size_t kRemembered = 1024;
  struct Bucket {
    std::array<policy::TimeSample, kLatest> samples;
    size_t added = 0;
    size_t latest = 0;  // The number of its last sample among all.
  };
  std::array<Bucket, kBuckets> buckets_;
  size_t added_ = 0;
};

}  // namespace lamina::compute_node
