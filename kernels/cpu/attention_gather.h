// SPDX-License-Identifier: Apache-2.0
//
// Where K of sixteen tokens of a block lies as one tile, gathered where it does not.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_internal.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels::internal {

// K of tokens t to t + 15 in the place and order of a tile at `to`; those that the block has not
// keep what is there.
inline __attribute__((noinline)) void GatherTile(const Tile& tile, const Block& block, uint32_t t,
                                                 uint16_t* to) {
  const auto* k = reinterpret_cast<const uint16_t*>(tile.k);
  const uint32_t end = std::min(block.end, t + kRunTokens);
  for (uint32_t token = std::max(block.begin, t); token < end; ++token) {
    const size_t slot = block.offsets[token] / tile.head_dim;
    const uint16_t* from = k + OffsetInTiles(slot, 0, tile.head_dim);
    for (size_t line = 0; line < tile.head_dim / 2; ++line) {
      for (const size_t element : {0, 1}) {
        to[line * kTileLine + PlaceInLine(token % kRunTokens, element)] =
            from[line * kTileLine + PlaceInLine(0, element)];
      }
    }
  }
}

// K of tokens t to t + 15 as one tile; those that the block has not may be anything.
inline __attribute__((always_inline)) const uint16_t* TileOf(const Tile& tile, const Block& block,
                                                             uint32_t t, Workspace& work) {
  if (!IsTile(block, t)) {
    auto* to = reinterpret_cast<uint16_t*>(work.k_tile);
    GatherTile(tile, block, t, to);
    return to;
  }
  const uint32_t begin = std::max(block.begin, t);
  return reinterpret_cast<const uint16_t*>(tile.k) + block.offsets[begin] -
         size_t{begin % kRunTokens} * tile.head_dim;
}

}  // namespace lamina::kernels::internal
