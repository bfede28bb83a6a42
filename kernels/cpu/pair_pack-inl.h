// SPDX-License-Identifier: Apache-2.0
//
// K and V of a block, packed into words of pairs for many passes over them, and the passes.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/cpu/attention_ahead.h"
#include "kernels/cpu/attention_gather.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/pair_values-inl.h"

namespace lamina::kernels::internal {
namespace {

// Calls `pass(row, rows, range)` for rows [first, end) in passes of at most kRowsAtOnce, as even as
// can be; `range` is what any of them sees.
template <uint32_t kRowsAtOnce, class Pass>
HWY_INLINE void ForRows(const Tile& tile, const Block& block, uint32_t first, uint32_t end,
                        const Pass& pass) {
  uint32_t passes = (end - first + kRowsAtOnce - 1) / kRowsAtOnce;
  for (uint32_t row = first; row < end; --passes) {
    const uint32_t rows = (end - row + passes - 1) / passes;
    // What a row sees begins and ends no earlier than what the row before it sees, also where
    // that is nothing of this block.
    const TokenRange range = {.begin = std::max(block.begin, SeenInBlock(tile, block, row).begin),
                              .end = SeenInBlock(tile, block, row + rows - 1).end};
    if (!range.empty()) {
      pass(row, rows, range);
    }
    row += rows;
  }
}

// Packs for steps of kStepTokens tokens of V: zeros stand around the block's tokens, up to whole
// steps.
template <class M, uint32_t kStepTokens>
class PairPacking {
 public:
  using Words = typename M::Words;

  static constexpr size_t kValueStripWords = kPairsOfBlock * kPairLanes;

  // K to strips of 16 tokens of `strip_lines` lines each, zeros behind the head's.
  // Requires: strip_lines is at least head_dim / 2.
  static void PackK(const Tile& tile, const Block& block, uint32_t strip_lines, Workspace& work) {
    const Ahead ahead = Ahead::OfScores(tile, block);
    const uint32_t lines = tile.head_dim / 2;
    for (uint32_t t = block.begin / kRunTokens * kRunTokens; t < block.end; t += kRunTokens) {
      const uint32_t group = t / kRunTokens;
      const uint16_t* k = TileOf(tile, block, t, work);
      uint32_t* to = work.pairs.k + size_t{group} * strip_lines * kPairLanes;
      for (uint32_t line = 0; line < lines; ++line) {
        PrefetchLine((line % 2 == 0 ? ahead.own : ahead.other)[group] + line / 2 * kTileLine);
        M::StoreWords(M::PairsOfLine(M::LoadWords(k + line * kTileLine)), to + line * kPairLanes);
      }
      for (uint32_t line = lines; line < strip_lines; ++line) {
        M::StoreWords(M::Broadcast(0), to + line * kPairLanes);
      }
    }
  }

  // Packs V and calls `multiply(first, end)` for rows: of all at once, or where V is not finite and
  // rows see different tokens, of each query token with zeros in place of what it does not see.
  template <class Multiply>
  static void ForPackedV(const Tile& tile, const Block& block, Workspace& work,
                         const Multiply& multiply) {
    const bool finite = PackV(tile, block, {.begin = block.begin, .end = block.end}, work);
    if (finite || SeenInBlock(tile, block, 0) == SeenInBlock(tile, block, tile.rows() - 1)) {
      return multiply(0, tile.rows());
    }
    for (uint32_t row = 0; row < tile.rows(); row += tile.group) {
      const TokenRange range = SeenInBlock(tile, block, row);
      if (!range.empty()) {
        PackV(tile, block, range, work);
        multiply(row, row + tile.group);
      }
    }
  }

 private:
  // V of tokens in `range`, zeros around them. Returns whether all of it is finite.
  static bool PackV(const Tile& tile, const Block& block, TokenRange range, Workspace& work) {
    const Ahead ahead = Ahead::OfValues(tile, block);
    const auto* v = reinterpret_cast<const uint16_t*>(tile.v);
    const uint32_t chunks = tile.padded_dim / 32;
    uint32_t broken = 0;
    ClearV(tile, block.begin / kStepTokens * kStepTokens / 2, block.begin / 2, work);
    ClearV(tile, (block.end + 1) / 2, (block.end + kStepTokens - 1) / kStepTokens * kStepTokens / 2,
           work);
    for (uint32_t t = block.begin / 2 * 2; t < block.end; t += 2) {
      const uint16_t* rows[2];
      for (uint32_t i : {0, 1}) {
        const bool seen = t + i >= range.begin && t + i < range.end;
        rows[i] = seen ? v + block.offsets[t + i] : nullptr;
      }
      uint32_t* to = work.pairs.v + t / 2 * kPairLanes;
      for (uint32_t chunk = 0; chunk < chunks; ++chunk, to += 2 * kValueStripWords) {
        RequestOfPair(ahead, t, chunk, chunks);
        const bool half = (chunk + 1) * 32 > tile.head_dim;
        const Words first = LoadValues<M>(rows[0], chunk, half);
        const Words second = LoadValues<M>(rows[1], chunk, half);
        broken |= M::NotFinite(first) | M::NotFinite(second);
        M::StoreWords(M::Low(first, second), to);
        M::StoreWords(M::High(first, second), to + kValueStripWords);
      }
    }
    return broken == 0;
  }

  // Zeros for pairs [first, end) of tokens.
  static void ClearV(const Tile& tile, uint32_t first, uint32_t end, Workspace& work) {
    for (uint32_t strip = 0; strip < tile.padded_dim / kPairLanes; ++strip) {
      uint32_t* const to = work.pairs.v + strip * kValueStripWords;
      std::fill(to + first * kPairLanes, to + end * kPairLanes, 0u);
    }
  }
};

}  // namespace
}  // namespace lamina::kernels::internal
