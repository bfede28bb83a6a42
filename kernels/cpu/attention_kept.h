// SPDX-License-Identifier: Apache-2.0
//
// What a kernel keeps of a block for those who rank tokens (kernels/attention_weights.h).

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_internal.h"

namespace lamina::kernels::internal {

// Copies the block's weights as the vector code has left them: `work.sum` has the inverses.
// Requires: tile.weights.
inline void KeepWeights(const Tile& tile, const Block& block, const Workspace& work) {
  const AttentionWeights& kept = *tile.weights;
  for (uint32_t row = 0; row < tile.rows(); ++row) {
    const TokenRange range = SeenInBlock(tile, block, row);
    if (range.empty()) {
      continue;
    }
    const size_t to = tile.weights_row + row / tile.group * kept.query_heads + row % tile.group;
    std::copy_n(work.scores + row * kScoreStride + range.begin, range.end - range.begin,
                kept.weights + to * kept.tokens_max + block.index * kBlockTokens + range.begin);
    kept.peaks[to * kept.blocks() + block.index] = work.peak[row];
    kept.sums[to * kept.blocks() + block.index] = 1.0f / work.sum[row];
  }
}

}  // namespace lamina::kernels::internal
