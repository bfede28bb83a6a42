// SPDX-License-Identifier: Apache-2.0
//
// What both kernels on tensor cores do with scores, which lie over a quad of threads.

#pragma once

#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/block_partials.cuh"
#include "kernels/cuda/canonical.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lamina::kernels::cuda {

__device__ inline float LargestOfQuad(float largest) {
  for (int offset = 1; offset <= 2; offset *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, largest, offset);
    largest = other > largest ? other : largest;
  }
  return largest;
}

__device__ inline float SumOfQuad(float sum) {
  for (int offset = 1; offset <= 2; offset *= 2) {
    sum = sum + __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  return sum;
}

// Not inline: it is long, and few models have a soft cap.
__attribute__((noinline)) static __device__ float CappedScoreOf(const AttentionShape& shape,
                                                                float dot) {
  return ScoreOf(shape, dot);
}

__device__ inline float TensorScoreOf(const AttentionShape& shape, float dot) {
  return shape.soft_cap > 0.0f ? CappedScoreOf(shape, dot) : shape.scale * dot;
}

// The weights of two scores, rounded to bf16.
__device__ inline uint32_t WeightPairOf(float low, float high, float largest) {
  return PackBFloat16(ExpTwo((low - largest) * canonical::kLog2E),
                      ExpTwo((high - largest) * canonical::kLog2E));
}

}  // namespace lamina::kernels::cuda
