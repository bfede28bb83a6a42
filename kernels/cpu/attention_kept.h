// SPDX-License-Identifier: Apache-2.0
//
// What a kernel keeps of a block for those who rank tokens (kernels/attention_weights.h).
//
// Softmax (attention_softmax-inl.h) stores the weights as it makes them, so that their lines come
// from further caches while it computes; the drivers add the rest when the block is done.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_internal.h"

namespace lamina::kernels::internal {

// Which of the kept rows a row of the tile is. Requires: tile.weights.
inline size_t KeptRow(const Tile& tile, uint32_t row) {
  return tile.weights_row + row / tile.group * tile.weights->query_heads + row % tile.group;
}

// Where the weights of a row's tokens of the block go; null if nobody wants them.
inline float* KeptWeights(const Tile& tile, const Block& block, uint32_t row) {
  return tile.weights == nullptr
             ? nullptr
             : tile.weights->weights + KeptRow(tile, row) * tile.weights->tokens_max +
                   size_t{block.index} * kBlockTokens;
}

// Keeps the block's peaks and sums as the vector code has left them: `work.sum` has the inverses.
// Requires: tile.weights.
inline void KeepSums(const Tile& tile, const Block& block, const Workspace& work) {
  const AttentionWeights& kept = *tile.weights;
  for (uint32_t row = 0; row < tile.rows(); ++row) {
    if (SeenInBlock(tile, block, row).empty()) {
      continue;
    }
    const size_t to = KeptRow(tile, row) * kept.blocks() + block.index;
    kept.peaks[to] = work.peak[row];
    kept.sums[to] = 1.0f / work.sum[row];
  }
}

}  // namespace lamina::kernels::internal
