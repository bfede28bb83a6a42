// SPDX-License-Identifier: Apache-2.0
//
// What a kernel keeps of a block for those who rank tokens (kernels/attention_weights.h).
//
// Where sums over heads are wanted, a tile's scores lie in memory of a KeptTile, which has room for
// all its blocks, and softmax makes weights of them there: they are stored once, as without sums.
// Where the weights themselves are wanted, they are copied. The drivers keep peaks and sums when a
// block is done.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_internal.h"

namespace lamina::kernels::internal {

// The weights of all blocks of one tile, and to what their sums over heads are added.
struct KeptTile {
  float* weights = nullptr;  // [blocks, rows, kScoreStride]: exp(s_i - m_b) of token i of block b
  float* peaks = nullptr;    // [blocks, rows]: m_b
  float* sums = nullptr;     // [blocks, rows]: Z_b
  uint32_t rows = 0;         // By query token and head of the tile.
  float* summed = nullptr;   // The tile's first query token; AttentionWeights::summed.
  size_t summed_stride = 0;

  // Floats of a tile in all three.
  static size_t FloatsOf(uint32_t rows, size_t blocks) {
    return blocks * rows * (kScoreStride + 2);
  }
  // Divides memory of FloatsOf() floats.
  static KeptTile Over(float* memory, uint32_t rows, size_t blocks) {
    float* const peaks = memory + blocks * rows * kScoreStride;
    return {.weights = memory, .peaks = peaks, .sums = peaks + blocks * rows, .rows = rows};
  }

  size_t block_floats() const { return rows * kScoreStride; }
};

// Says where the scores of a block lie, and whether the worker goes on to the tile's next one.
// `kept` is null where no sums are wanted.
inline void PlaceScores(const KeptTile* kept, uint32_t block, bool goes_on, Workspace& work) {
  work.scores = kept == nullptr ? work.own_scores : kept->weights + block * kept->block_floats();
  work.scores_ahead = kept == nullptr || !goes_on ? 0 : kept->block_floats();
}

// Which of the kept rows a row of the tile is. Requires: tile.weights.
inline size_t KeptRow(const Tile& tile, uint32_t row) {
  return tile.weights_row + row / tile.group * tile.weights->query_heads + row % tile.group;
}

// Copies the weights of a row's tokens of the block to where they are wanted, if anywhere.
inline void KeepWeights(const Tile& tile, const Block& block, TokenRange range, uint32_t row,
                        const Workspace& work) {
  if (tile.weights == nullptr) {
    return;
  }
  const float* const from = work.scores + size_t{row} * kScoreStride;
  float* const to = tile.weights->weights + KeptRow(tile, row) * tile.weights->tokens_max +
                    size_t{block.index} * kBlockTokens;
  std::copy(from + range.begin, from + range.end, to + range.begin);
}

// Keeps the block's peaks and sums as the vector code has left them, if anybody wants them:
// `work.sum` has the inverses.
inline void KeepSums(const Tile& tile, const KeptTile* kept, const Block& block,
                     const Workspace& work) {
  if (kept != nullptr) {
    // Those of a row that sees nothing of the block are not looked at.
    float* const peaks = kept->peaks + size_t{block.index} * kept->rows;
    float* const sums = kept->sums + size_t{block.index} * kept->rows;
    for (uint32_t row = 0; row < kept->rows; ++row) {
      peaks[row] = work.peak[row];
      sums[row] = 1.0f / work.sum[row];
    }
    return;
  }
  if (tile.weights == nullptr) {
    return;
  }
  const AttentionWeights& wanted = *tile.weights;
  for (uint32_t row = 0; row < tile.rows(); ++row) {
    if (SeenInBlock(tile, block, row).empty()) {
      continue;
    }
    const size_t to = KeptRow(tile, row) * wanted.blocks() + block.index;
    wanted.peaks[to] = work.peak[row];
    wanted.sums[to] = 1.0f / work.sum[row];
  }
}

}  // namespace lamina::kernels::internal
