// SPDX-License-Identifier: Apache-2.0
//
// MakingLine: how long it takes to make K and V of a layer's tokens from their activations, as a
// straight line over tokens (T_kv_gen of HybridServe, hybridserve.txt 4.3.2), fitted to what was
// measured at start and to layers since.
//
// The latest few samples between two powers of two count, so that one size that comes all the time
// does not drown the others.
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

  // Nothing: all samples have one size.
  std::optional<policy::FittedLine> Fit() const;

 private:
  static constexpr size_t kLatest = 8;    // Samples of a bucket.
  static constexpr size_t kBuckets = 32;  // One for each power of two.
  struct Bucket {
    std::array<policy::TimeSample, kLatest> samples;
    size_t added = 0;
  };
  std::array<Bucket, kBuckets> buckets_;
};

}  // namespace lamina::compute_node
