// SPDX-License-Identifier: Apache-2.0
//
// What both ways to scores and values in pairs of bf16 have in common (pair_attention-inl.h).

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/cpu/attention_ahead.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels::internal {
namespace {

constexpr size_t kPairLanes = 16;
constexpr uint32_t kPairsOfBlock = kBlockTokens / 2;

HWY_INLINE float* TopOfStack(const Tile& tile, const Workspace& work, uint32_t row) {
  return work.stack + (work.depth * work.rows_max + row) * tile.padded_dim;
}

// Stores a sum of values, +0 in place of -0: flushing can leave either, and pairs at weights of
// zero would make one of the other.
template <class M>
HWY_INLINE void StoreSum(const typename M::Floats& sum, float* to) {
  M::Store(M::Add(sum, M::Zero()), to);
}

// Asks for what a pair of tokens pays for in a chunk of 32 elements: a line of both streams.
HWY_INLINE void RequestOfPair(const Ahead& ahead, uint32_t t, uint32_t chunk, uint32_t chunks) {
  const size_t line = (t % kRunTokens / 2 * chunks + chunk) * kTileLine;
  PrefetchLine(ahead.own[t / kRunTokens] + line);
  PrefetchLine(ahead.other[t / kRunTokens] + line);
}

// A chunk of a row of V, or the 16 elements that it ends with; null: zeros.
template <class M>
HWY_INLINE typename M::Words LoadValues(const uint16_t* row, uint32_t chunk, bool half) {
  if (row == nullptr) {
    return M::Broadcast(0);
  }
  return half ? M::LoadHalf(row + chunk * 32) : M::LoadWords(row + chunk * 32);
}

}  // namespace
}  // namespace lamina::kernels::internal
