// SPDX-License-Identifier: Apache-2.0
//
// What both kernels of block partials share: which tokens of a block of 256 a query token sees, in
// which slots they lie, and what becomes of a dot product.

#pragma once

#include <cstdint>

#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/canonical.cuh"

namespace lamina::kernels::cuda {

inline constexpr int kTokens = static_cast<int>(kAttentionBlockTokens);

__device__ inline int Smaller(int a, int b) { return a < b ? a : b; }
__device__ inline int Larger(int a, int b) { return a > b ? a : b; }

// Tokens of the block that a query token sees, from the block's first: [begin, end), may be empty.
struct Seen {
  int begin;
  int end;
};

__device__ inline Seen SeenBy(const AttentionUnit& unit, uint32_t window, uint32_t query_token) {
  const int64_t position = int64_t{unit.first_position} + query_token;
  const int64_t base = int64_t{unit.block} * kTokens;
  const int64_t windowed = window != 0 && position + 1 > window ? position + 1 - window : 0;
  const int64_t first = windowed > int64_t{unit.first_seen} ? windowed : int64_t{unit.first_seen};
  const int64_t begin = first - base;
  const int64_t end = position + 1 - base;
  const int held = static_cast<int>(unit.tokens);
  const int clipped_begin = begin <= 0 ? 0 : begin >= held ? held : static_cast<int>(begin);
  const int clipped_end = end <= 0 ? 0 : end >= held ? held : static_cast<int>(end);
  return {clipped_begin, Larger(clipped_begin, clipped_end)};
}

// Writes the slots of the block's tokens, by the whole thread block. Tokens past the last one held
// take its slot: it may be read for them, and is never used.
__device__ inline void FillSlots(const AttendBlocksArguments& a, const AttentionUnit& unit,
                                 uint32_t* slots) {
  const int last = static_cast<int>(unit.tokens) - 1;
  for (int t = static_cast<int>(threadIdx.x); t < kTokens; t += static_cast<int>(blockDim.x)) {
    uint32_t token = static_cast<uint32_t>(Smaller(t, last));
    if (unit.first_slot != kScattered) {
      slots[t] = unit.first_slot + token;
      continue;
    }
    token += unit.extent_skip;
    const Extent* extent = a.extents + unit.extent;
    while (token >= extent->tokens) {
      token -= extent->tokens;
      ++extent;
    }
    slots[t] = extent->first_slot + token;
  }
}

__device__ inline float ScoreOf(const AttentionShape& shape, float dot) {
  const float s = shape.scale * dot;
  return shape.soft_cap > 0.0f ? shape.soft_cap * TanhCanonical(s / shape.soft_cap) : s;
}

}  // namespace lamina::kernels::cuda
