// SPDX-License-Identifier: Apache-2.0
//
// Attention in pairs of bf16 over one block of tokens: the same loops for each machine that
// multiplies pairs, a class whose members are its instructions (pair_attention_x86.cc,
// pair_attention_plain.cc).
//
// The bits are those of kernels/reference/pair_attention.cc. Two ways lead there: many rows pack K
// and V first (pair_packed-inl.h), few read them in place (pair_few-inl.h). V of tokens that a row
// does not see is multiplied by weights of zero, which changes nothing but signs of zeros while it
// is finite, and sums end as +0 for -0; where it is not, each query token packs its own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/pair_few-inl.h"
#include "kernels/cpu/pair_packed-inl.h"
#include "kernels/cpu/pair_rows-inl.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels::internal {
namespace {

template <class M>
class PairTiles {
 public:
  // Puts the queries' pairs into the order of K's lines: row after row, or with few rows those of
  // all rows side by side.
  static void Begin(const Tile& tile, Workspace& work) {
    const size_t words = tile.head_dim / 2;
    const bool few = FewPairs<M>::Takes(tile);
    for (uint32_t row = 0; row < tile.rows(); ++row) {
      const BFloat16* from =
          tile.q + row / tile.group * tile.q_stride + size_t{row % tile.group} * tile.head_dim;
      for (size_t pair = 0; pair < words; pair += kLanePairs, from += 2 * kLanePairs) {
        const size_t place = PlaceOfPair(pair, tile.head_dim);
        if (few) {
          Scatter(from, tile.rows(), work.pairs.q + place * tile.rows() + row);
        } else {
          std::memcpy(work.pairs.q + row * words + place, from, kLanePairs * sizeof(uint32_t));
        }
      }
    }
    work.depth = 0;
  }

  static void AttendBlock(const Tile& tile, const Block& block, Workspace& work) {
    if (FewPairs<M>::Takes(tile)) {
      FewPairs<M>::Scores(tile, block, work);
      PairRows<M>::FindWeights(tile, block, work);
      FewPairs<M>::Values(tile, block, work);
    } else {
      PackedPairs<M>::Weights(tile, block, work);
      PackedPairs<M>::Values(tile, block, work);
    }
    PairRows<M>::Merge().close(tile, block, work);
  }

 private:
  // The pairs of a lane, `stride` words apart.
  static HWY_INLINE void Scatter(const BFloat16* from, size_t stride, uint32_t* to) {
    for (size_t i = 0; i < kLanePairs; ++i) {
      std::memcpy(to + i * stride, from + 2 * i, sizeof(*to));
    }
  }
};

template <class M>
AttentionOps PairOps() {
  return {.name = M::kName,
          .begin = PairTiles<M>::Begin,
          .block = PairTiles<M>::AttendBlock,
          .end = PairRows<M>::End,
          .merge = SupportedAttentionOps()[0]->merge,
          .tile_rows = 128,  // Packing costs a tile as much as some eight of its rows.
          .has_pairs = true};
}

}  // namespace
}  // namespace lamina::kernels::internal
