// SPDX-License-Identifier: Apache-2.0
//
// Dot products of q and K in canonical arithmetic, on a device: four neighbouring threads share a
// token and have a lane of its score each, eight elements of every 32
// (docs/design/attention_numerics.md, "Scores").

#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/canonical.cuh"

namespace lamina::kernels::cuda {

inline constexpr int kThreadsPerToken = 4;

// Adds the products of eight elements to a lane, in their order.
__device__ inline float MultiplyEight(const uint4& k, const float4& q_low, const float4& q_high,
                                      float lane) {
  lane = fmaf(q_low.x, LowBFloat16(k.x), lane);
  lane = fmaf(q_low.y, HighBFloat16(k.x), lane);
  lane = fmaf(q_low.z, LowBFloat16(k.y), lane);
  lane = fmaf(q_low.w, HighBFloat16(k.y), lane);
  lane = fmaf(q_high.x, LowBFloat16(k.z), lane);
  lane = fmaf(q_high.y, HighBFloat16(k.z), lane);
  lane = fmaf(q_high.z, LowBFloat16(k.w), lane);
  return fmaf(q_high.w, HighBFloat16(k.w), lane);
}

// The sum of a score's four lanes, of which each of four neighbouring threads has one.
__device__ inline float SumLanes(float lane) {
  const float sum = lane + __shfl_xor_sync(0xffffffffu, lane, 2);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

// The sum of sixteen lanes of weights, of which each of sixteen neighbouring threads has one.
__device__ inline float SumSixteen(float lane) {
  float sum = lane + __shfl_xor_sync(0xffffffffu, lane, 2);
  sum = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
  sum = sum + __shfl_xor_sync(0xffffffffu, sum, 8);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 4);
}

__device__ inline float LargestOfSixteen(float largest) {
  for (int offset = 8; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, largest, offset);
    largest = other > largest ? other : largest;
  }
  return largest;
}

}  // namespace lamina::kernels::cuda
