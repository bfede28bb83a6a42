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

// The slot of the unit's token `token`; past the last one held the last one's, which may be read
// for it, and is never used. Extents are bisected: with one for each token eight loads wait for
// each other, not 256.
__device__ inline uint32_t SlotOf(const AttendBlocksArguments& a, const AttentionUnit& unit,
                                  uint32_t token) {
  token = token < unit.tokens ? token : unit.tokens - 1;
  if (unit.first_slot != kScattered) {
    return unit.first_slot + token;
  }
  token += unit.first_token;
  const PlacedExtent* const extents = a.extents + unit.extent;
  uint32_t low = 0;
  for (uint32_t high = unit.extents; high - low > 1;) {
    const uint32_t middle = (low + high) / 2;
    if (extents[middle].begin <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return extents[low].first_slot + (token - extents[low].begin);
}

// Writes the slots of the unit's first `tokens` tokens, by the whole thread block.
__device__ inline void FillSlots(const AttendBlocksArguments& a, const AttentionUnit& unit,
                                 uint32_t* slots, int tokens = kTokens) {
  for (int t = static_cast<int>(threadIdx.x); t < tokens; t += static_cast<int>(blockDim.x)) {
    slots[t] = SlotOf(a, unit, static_cast<uint32_t>(t));
  }
}

__device__ inline float ScoreOf(const AttentionShape& shape, float dot) {
  const float s = shape.scale * dot;
  return shape.soft_cap > 0.0f ? shape.soft_cap * TanhCanonical(s / shape.soft_cap) : s;
}

}  // namespace lamina::kernels::cuda
