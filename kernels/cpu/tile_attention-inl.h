// SPDX-License-Identifier: Apache-2.0
//
// Attention in tiles of bf16 over one block of tokens: the same loops for each machine, a class of
// vectors as in pairs (pair_attention-inl.h), which packs and weighs, and a unit of tiles
// (tiles.h), which multiplies.
//
// The bits are those of kernels/reference/tile_attention.cc. K and V of the block are packed into
// words of pairs, of which sixteen lines are a tile, for one row as for many; rows go through them
// in passes of two tiles. V of tokens that a row does not see is multiplied by weights of zero,
// which changes nothing but signs of zeros while it is finite, and these end with a step of zeros;
// where it is not, each query token packs its own.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/pair_pack-inl.h"
#include "kernels/cpu/pair_rows-inl.h"
#include "kernels/cpu/tile_multiplier-inl.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels::internal {
namespace {

template <class M, class Unit>
class TileAttention {
 public:
  // Puts the queries' pairs into the order of K's lines, row after row, with zeros behind a head's
  // end.
  static void Begin(const Tile& tile, Workspace& work) {
    const size_t words = tile.padded_dim / 2;
    for (uint32_t row = 0; row < tile.rows(); ++row) {
      const BFloat16* from =
          tile.q + row / tile.group * tile.q_stride + size_t{row % tile.group} * tile.head_dim;
      uint32_t* to = work.pairs.q + row * words;
      for (size_t pair = 0; pair < tile.head_dim / 2; pair += kLanePairs) {
        std::memcpy(to + PlaceOfPair(pair, tile.head_dim), from + 2 * pair,
                    kLanePairs * sizeof(*to));
      }
      std::fill(to + tile.head_dim / 2, to + words, 0u);
    }
    work.depth = 0;
  }

  // The tiles are given back before it returns.
  static void AttendBlock(const Tile& tile, const Block& block, Workspace& work) {
    {
      Unit unit;
      Multiplier multiplier(unit);
      Scores(tile, block, multiplier, work);
      PairRows<M>::FindWeights(tile, block, work);
      Values(tile, block, multiplier, work);
    }
    PairRows<M>::Merge().close(tile, block, work);
  }

 private:
  using Multiplier = cpu::TileMultiplier<Unit>;
  // Tokens of a step of values.
  static constexpr uint32_t kStepTokens = 2 * cpu::kTileSteps;
  using Packing = PairPacking<M, kStepTokens>;

  static void Scores(const Tile& tile, const Block& block, Multiplier& multiplier,
                     Workspace& work) {
    const uint32_t lines = tile.padded_dim / 2;
    const size_t strip_words = size_t{lines} * kPairLanes;
    Packing::PackK(tile, block, lines, work);
    ForRows<Multiplier::kRowsMax>(
        tile, block, 0, tile.rows(), [&](uint32_t row, uint32_t rows, TokenRange range) {
          const uint32_t strip = range.begin / kRunTokens;
          multiplier.Multiply({.rows = work.pairs.q + size_t{row} * lines,
                               .row_words = lines,
                               .strips = work.pairs.k + strip * strip_words,
                               .strip_words = strip_words,
                               .steps = lines,
                               .out = work.scores + size_t{row} * kScoreStride + strip * kRunTokens,
                               .out_stride = kScoreStride},
                              rows, (range.end + kRunTokens - 1) / kRunTokens - strip);
        });
  }

  static void Values(const Tile& tile, const Block& block, Multiplier& multiplier,
                     Workspace& work) {
    Packing::ForPackedV(tile, block, work, [&](uint32_t first, uint32_t end) {
      ForRows<Multiplier::kRowsMax>(
          tile, block, first, end, [&](uint32_t row, uint32_t rows, TokenRange range) {
            const uint32_t step = range.begin / kStepTokens;
            const uint32_t steps = (range.end + kStepTokens - 1) / kStepTokens - step;
            const size_t pair = size_t{step} * cpu::kTileSteps;
            multiplier.Multiply({.rows = work.pairs.p + row * kPairStride + pair,
                                 .row_words = kPairStride,
                                 .strips = work.pairs.v + pair * kPairLanes,
                                 .strip_words = Packing::kValueStripWords,
                                 .steps = steps * cpu::kTileSteps,
                                 .out = TopOfStack(tile, work, row),
                                 .out_stride = tile.padded_dim,
                                 .ends_with_zeros = true},
                                rows, tile.padded_dim / static_cast<uint32_t>(kPairLanes));
          });
    });
  }
};

template <class M, class Unit>
AttentionOps TileOps(const char* name) {
  return {.name = name,
          .begin = TileAttention<M, Unit>::Begin,
          .block = TileAttention<M, Unit>::AttendBlock,
          .end = PairRows<M>::End,
          .merge = SupportedAttentionOps()[0]->merge,
          .tile_rows = 128,  // Packing costs a tile more than some of its rows.
          .has_pairs = true};
}

}  // namespace
}  // namespace lamina::kernels::internal
