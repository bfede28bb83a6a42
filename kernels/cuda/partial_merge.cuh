// SPDX-License-Identifier: Apache-2.0
//
// How two partials of neighbouring blocks become one: MergePartials of kernels/partial.h.

#pragma once

#include "kernels/cuda/canonical.cuh"

namespace lamina::kernels::cuda {

// What an empty partial counts as: adding it changes no bit of another, not even a zero's sign.
inline constexpr float kNothing = -0.0f;

// What remains of two neighbours of the tree, the earlier first.
struct Shares {
  float of_a;
  float of_b;
  float lse;
};

__device__ inline Shares ShareOut(float lse_a, float lse_b) {
  if (lse_b == kMinusInfinity) {
    return {1.0f, 0.0f, lse_a};
  }
  if (lse_a == kMinusInfinity) {
    return {0.0f, 1.0f, lse_b};
  }
  const float m = lse_a > lse_b ? lse_a : lse_b;
  const float weight_a = ExpCanonical(lse_a - m);
  const float weight_b = ExpCanonical(lse_b - m);
  const float sum = weight_a + weight_b;
  return {weight_a / sum, weight_b / sum, m + LogCanonical(sum)};
}

__device__ inline float MergeOne(const Shares& shares, float a, float b) {
  return fmaf(shares.of_a, a, shares.of_b * b);
}

}  // namespace lamina::kernels::cuda
