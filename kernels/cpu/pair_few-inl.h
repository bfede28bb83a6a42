// SPDX-License-Identifier: Apache-2.0
//
// Scores and values in pairs of bf16 of the few rows of one query token, which read K and V where
// they lie and make pairs in registers.

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

template <class M>
class FewPairs {
 public:
  using Floats = typename M::Floats;
  using Words = typename M::Words;

  static constexpr uint32_t kRowsMax = 8;

  static void Scores(const Tile& tile, const Block& block, Workspace& work) {
    const Ahead ahead = Ahead::OfScores(tile, block);
    ForFewRows(tile, block, [&](uint32_t row, uint32_t rows, uint32_t begin, uint32_t end) {
      switch (rows) {
        case 1:
          return ScoreRows<1>(tile, block, ahead, row, begin, end, work);
        case 2:
          return ScoreRows<2>(tile, block, ahead, row, begin, end, work);
        case 3:
          return ScoreRows<3>(tile, block, ahead, row, begin, end, work);
        default:
          return ScoreRows<4>(tile, block, ahead, row, begin, end, work);
      }
    });
  }

  static void Values(const Tile& tile, const Block& block, Workspace& work) {
    const Ahead ahead = Ahead::OfValues(tile, block);
    ForFewRows(tile, block, [&](uint32_t row, uint32_t rows, uint32_t begin, uint32_t end) {
      switch (rows) {
        case 1:
          return ValueColumns<1>(tile, block, ahead, row, begin, end, work);
        case 2:
          return ValueColumns<2>(tile, block, ahead, row, begin, end, work);
        case 3:
          return ValueColumns<3>(tile, block, ahead, row, begin, end, work);
        default:
          return ValueColumns<4>(tile, block, ahead, row, begin, end, work);
      }
    });
  }

 private:
  // Rows of a pass.
  static constexpr uint32_t kRowsAtOnce = 4;
  // Tokens between changes of rows in several passes: K or V stays in the first-level cache.
  static constexpr uint32_t kStretch = 64;

  // Calls `pass(row, rows, begin, end, first)` for rows in passes and tokens in stretches.
  template <class Pass>
  static HWY_INLINE void ForFewRows(const Tile& tile, const Block& block, const Pass& pass) {
    const uint32_t passes = (tile.rows() + kRowsAtOnce - 1) / kRowsAtOnce;
    const uint32_t stretch = passes == 1 ? kBlockTokens : kStretch;
    for (uint32_t t = block.begin; t < block.end; t = t / stretch * stretch + stretch) {
      const uint32_t end = std::min(block.end, t / stretch * stretch + stretch);
      uint32_t row = 0;
      for (uint32_t i = 0; i < passes; ++i) {
        const uint32_t rows = (tile.rows() - row) / (passes - i);
        pass(row, rows, t, end);
        row += rows;
      }
    }
  }

  template <int kRows>
  static HWY_NOINLINE void ScoreRows(const Tile& tile, const Block& block, const Ahead& ahead,
                                     uint32_t row, uint32_t begin, uint32_t end, Workspace& work) {
    const uint32_t* q = work.pairs.q + size_t{row} * tile.head_dim / 2;
    float* scores = work.scores + size_t{row} * kScoreStride;
    constexpr uint32_t kTiles = 4;
    for (uint32_t group = begin / kRunTokens; group * kRunTokens < end;) {
      const uint32_t t = group * kRunTokens;
      const uint32_t four = (1u << kTiles) - 1;
      if (t + kTiles * kRunTokens <= (end + kRunTokens - 1) / kRunTokens * kRunTokens &&
          (block.tiles >> group & four) == four) {
        const uint16_t* k[kTiles];
        for (uint32_t i = 0; i < kTiles; ++i) {
          k[i] = TileOf(tile, block, t + i * kRunTokens, work);
        }
        ScoreTiles<kRows, kTiles>(tile.head_dim, k, q, ahead, group, row == 0, scores + t);
        group += kTiles;
      } else {
        const uint16_t* k[1] = {TileOf(tile, block, t, work)};
        ScoreTiles<kRows, 1>(tile.head_dim, k, q, ahead, group, row == 0, scores + t);
        ++group;
      }
    }
  }

  // Scores of kRows rows and kTiles tiles of tokens. The lines that those groups pay for are asked
  // for group by group, in their order.
  template <int kRows, int kTiles>
  static HWY_INLINE void ScoreTiles(uint32_t head_dim, const uint16_t* const (&k)[kTiles],
                                    const uint32_t* q, const Ahead& ahead, uint32_t group,
                                    bool fetch, float* scores) {
    const uint32_t lines = head_dim / 2;
    Floats sums[kRows][kTiles];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kTiles; ++i) {
        sums[r][i] = M::Zero();
      }
    }
    const uint32_t piece = lines / kTiles;
    for (int part = 0; part < kTiles; ++part) {
      const uint16_t* own = ahead.own[group + part];
      const uint16_t* other = ahead.other[group + part];
#pragma GCC unroll 1
      for (uint32_t line = part * piece; line < (part + 1) * piece; line += 2) {
#pragma GCC unroll 2
        for (uint32_t two = 0; two < 2; ++two) {
          if (fetch) {
#pragma GCC unroll 4
            for (int i = 0; i < kTiles; ++i) {
              if (kTiles == 1) {
                PrefetchLine(two == 0 ? own : other);
              } else {
                PrefetchLine((i % 2 == 0 ? own : other) + (two * (kTiles / 2) + i / 2) * kTileLine);
              }
            }
          }
          Words words[kTiles];
#pragma GCC unroll 4
          for (int i = 0; i < kTiles; ++i) {
            words[i] = M::PairsOfLine(M::LoadWords(k[i] + (line + two) * kTileLine));
          }
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const Words pair = M::Broadcast(q[r * lines + line + two]);
#pragma GCC unroll 4
            for (int i = 0; i < kTiles; ++i) {
              sums[r][i] = M::Step(sums[r][i], pair, words[i]);
            }
          }
        }
        own += kTiles * kTileLine;
        other += kTiles * kTileLine;
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kTiles; ++i) {
        M::Store(sums[r][i], scores + r * kScoreStride + i * kRunTokens);
      }
    }
  }

  template <int kRows>
  static HWY_NOINLINE void ValueColumns(const Tile& tile, const Block& block, const Ahead& ahead,
                                        uint32_t row, uint32_t begin, uint32_t end,
                                        Workspace& work) {
    constexpr uint32_t kMost = kRows < 4 ? 4 : 2;
    const Columns columns = {.tile = tile,
                             .block = block,
                             .ahead = ahead,
                             .weights = work.pairs.p + size_t{row} * kPairStride,
                             .out = TopOfStack(tile, work, row),
                             .begin = begin,
                             .end = end,
                             .fetch = row == 0};
    const uint32_t chunks = tile.head_dim / 32;
    uint32_t chunk = 0;
    for (; kMost == 4 && chunk + 4 <= chunks; chunk += 4) {
      Walk<kRows, 4, false>(columns, chunk);
    }
    for (; chunk + 2 <= chunks; chunk += 2) {
      Walk<kRows, 2, false>(columns, chunk);
    }
    for (; chunk < chunks; ++chunk) {
      Walk<kRows, 1, false>(columns, chunk);
    }
    if (chunk * 32 < tile.head_dim) {
      Walk<kRows, 1, true>(columns, chunk);
    }
  }

  struct Columns {
    const Tile& tile;
    const Block& block;
    const Ahead& ahead;
    const uint32_t* weights;
    float* out;
    uint32_t begin;  // Tokens of this stretch.
    uint32_t end;
    bool fetch;
  };

  template <int kRows, int kChunks>
  struct Sums {
    Floats low[kRows][kChunks];
    Floats high[kRows][kChunks];
  };

  // Values of kChunks chunks of 32 elements from `chunk` on. Before the block's first token sums
  // start from 0, else from where the last stretch left them.
  template <int kRows, int kChunks, bool kHalf>
  static HWY_NOINLINE void Walk(const Columns& columns, uint32_t chunk) {
    const Tile& tile = columns.tile;
    const bool fresh = columns.begin == columns.block.begin;
    Sums<kRows, kChunks> sums;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kChunks; ++c) {
        const float* out = columns.out + r * tile.padded_dim + (chunk + c) * 32;
        sums.low[r][c] = fresh ? M::Zero() : M::Load(out);
        sums.high[r][c] = fresh ? M::Zero() : M::Load(out + kPairLanes);
      }
    }
    const uint16_t* v = reinterpret_cast<const uint16_t*>(tile.v) + chunk * 32;
    const size_t* offsets = columns.block.offsets;
    uint32_t t = columns.begin;
    if (t % 2 != 0) {
      ValuePair<kRows, kChunks, kHalf>(nullptr, v + offsets[t], columns.weights + t / 2, sums);
      ++t;
    }
    const uint32_t chunks = tile.padded_dim / 32;
    for (; t + 2 <= columns.end; t += 2) {
      if (columns.fetch) {
#pragma GCC unroll 4
        for (int c = 0; c < kChunks; ++c) {
          RequestOfPair(columns.ahead, t, chunk + c, chunks);
        }
      }
      ValuePair<kRows, kChunks, kHalf>(v + offsets[t], v + offsets[t + 1], columns.weights + t / 2,
                                       sums);
    }
    if (t < columns.end) {
      ValuePair<kRows, kChunks, kHalf>(v + offsets[t], nullptr, columns.weights + t / 2, sums);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kChunks; ++c) {
        float* out = columns.out + r * tile.padded_dim + (chunk + c) * 32;
        M::Store(sums.low[r][c], out);
        M::Store(sums.high[r][c], out + kPairLanes);
      }
    }
  }

  // Adds two tokens; null: zeros in place of one that is not seen.
  template <int kRows, int kChunks, bool kHalf>
  static HWY_INLINE void ValuePair(const uint16_t* first, const uint16_t* second,
                                   const uint32_t* weights, Sums<kRows, kChunks>& sums) {
    Words low[kChunks];
    Words high[kChunks];
#pragma GCC unroll 4
    for (int c = 0; c < kChunks; ++c) {
      const Words a = LoadValues<M>(first, static_cast<uint32_t>(c), kHalf);
      const Words b = LoadValues<M>(second, static_cast<uint32_t>(c), kHalf);
      low[c] = M::Low(a, b);
      high[c] = M::High(a, b);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Words pair = M::Broadcast(weights[r * kPairStride]);
#pragma GCC unroll 4
      for (int c = 0; c < kChunks; ++c) {
        sums.low[r][c] = M::Step(sums.low[r][c], pair, low[c]);
        sums.high[r][c] = M::Step(sums.high[r][c], pair, high[c]);
      }
    }
  }
};

}  // namespace
}  // namespace lamina::kernels::internal
