// SPDX-License-Identifier: Apache-2.0
//
// Scores and values in pairs of bf16 of the few rows of one query token, which read K and V where
// they lie and make pairs in registers.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

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

  static bool Takes(const Tile& tile) { return tile.query_tokens == 1 && tile.rows() <= kRowsMax; }

  // Requires: Takes(tile), here and below.
  static void Scores(const Tile& tile, const Block& block, Workspace& work) {
    const Ahead ahead = Ahead::OfScores(tile, block);
    WithRows(tile, [&](auto rows) { ScoreRows<rows>(tile, block, ahead, work); });
  }

  static void Values(const Tile& tile, const Block& block, Workspace& work) {
    const Ahead ahead = Ahead::OfValues(tile, block);
    WithRows(tile, [&](auto rows) { ValueColumns<rows>(tile, block, ahead, work); });
  }

 private:
  // All rows go in one pass, so that requests for what comes are spread over it evenly: few rows
  // take several vectors of elements side by side, many take few: up to 24 sums, and twelve
  // where there can be as many, since two instructions of six cycles each are under way then. Of
  // tokens few rows take one tile after the other: K is one stream then, which memory serves better
  // than several, and the processor begins a tile before the last one's chains have ended.
  template <int kRows>
  static constexpr int kTiles = kRows <= 3 ? 1 : 2;
  template <int kRows>
  static constexpr int kChunks = kRows <= 3   ? 4
                                 : kRows <= 6 ? 2
                                              : 1;
  template <int kRows>
  static constexpr AskedLines kAsked = kRows == 1 ? AskedLines::kFirstOfTwo : AskedLines::kAll;

  // Calls `pass` with the number of rows as a constant.
  template <class Pass>
  static HWY_INLINE void WithRows(const Tile& tile, const Pass& pass) {
    switch (tile.rows()) {
      case 1:
        return pass(std::integral_constant<int, 1>());
      case 2:
        return pass(std::integral_constant<int, 2>());
      case 3:
        return pass(std::integral_constant<int, 3>());
      case 4:
        return pass(std::integral_constant<int, 4>());
      case 5:
        return pass(std::integral_constant<int, 5>());
      case 6:
        return pass(std::integral_constant<int, 6>());
      case 7:
        return pass(std::integral_constant<int, 7>());
      default:
        return pass(std::integral_constant<int, 8>());
    }
  }

  template <int kRows>
  static HWY_NOINLINE void ScoreRows(const Tile& tile, const Block& block, const Ahead& ahead,
                                     Workspace& work) {
    constexpr uint32_t kAtOnce = kTiles<kRows>;
    constexpr uint32_t kAll = (1u << kAtOnce) - 1;
    const uint32_t end = (block.end + kRunTokens - 1) / kRunTokens;
    for (uint32_t group = block.begin / kRunTokens; group < end;) {
      float* scores = work.scores + group * kRunTokens;
      if (group + kAtOnce <= end && (block.tiles >> group & kAll) == kAll) {
        const uint16_t* k[kAtOnce];
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          k[i] = TileOf(tile, block, (group + i) * kRunTokens, work);
        }
        ScoreTiles<kRows, kAtOnce>(tile.head_dim, k, work.pairs.q, ahead, group, scores);
        group += kAtOnce;
      } else {
        const uint16_t* k[1] = {TileOf(tile, block, group * kRunTokens, work)};
        ScoreTiles<kRows, 1>(tile.head_dim, k, work.pairs.q, ahead, group, scores);
        ++group;
      }
    }
  }

  // Scores of kRows rows and kTiles tiles of tokens. The lines that those groups pay for are asked
  // for group by group, in their order.
  template <int kRows, int kCount>
  static HWY_INLINE void ScoreTiles(uint32_t head_dim, const uint16_t* const (&k)[kCount],
                                    const uint32_t* q, const Ahead& ahead, uint32_t group,
                                    float* scores) {
    const uint32_t lines = head_dim / 2;
    Floats sums[kRows][kCount];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) {
        sums[r][i] = M::Zero();
      }
    }
    const uint32_t piece = lines / kCount;
    for (int part = 0; part < kCount; ++part) {
      const uint16_t* own = ahead.own[group + part];
      const uint16_t* other = ahead.other[group + part];
#pragma GCC unroll 1
      for (uint32_t line = part * piece; line < (part + 1) * piece; line += 2) {
#pragma GCC unroll 2
        for (uint32_t two = 0; two < 2; ++two) {
#pragma GCC unroll 4
          for (int i = 0; i < kCount; ++i) {
            if (kCount == 1) {
              PrefetchLineOf<kAsked<kRows>>(two == 0 ? own : other);
            } else {
              PrefetchLine((i % 2 == 0 ? own : other) + (two * (kCount / 2) + i / 2) * kTileLine);
            }
          }
          Words words[kCount];
#pragma GCC unroll 4
          for (int i = 0; i < kCount; ++i) {
            words[i] = M::PairsOfLineAt(k[i] + (line + two) * kTileLine);
          }
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const Words pair = M::Broadcast(q[(line + two) * kRows + r]);
#pragma GCC unroll 4
            for (int i = 0; i < kCount; ++i) {
              sums[r][i] = M::Step(sums[r][i], pair, words[i]);
            }
          }
        }
        own += kCount * kTileLine;
        other += kCount * kTileLine;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) {
        M::Store(sums[r][i], scores + r * kScoreStride + i * kRunTokens);
      }
    }
  }

  template <int kRows>
  static HWY_NOINLINE void ValueColumns(const Tile& tile, const Block& block, const Ahead& ahead,
                                        Workspace& work) {
    constexpr uint32_t kMost = kChunks<kRows>;
    const Columns columns = {.tile = tile,
                             .block = block,
                             .ahead = ahead,
                             .weights = work.pairs.p,
                             .out = TopOfStack(tile, work, 0)};
    const uint32_t chunks = tile.head_dim / 32;
    uint32_t chunk = 0;
    for (; kMost == 4 && chunk + 4 <= chunks; chunk += 4) {
      Walk<kRows, 4, false>(columns, chunk);
    }
    for (; kMost >= 2 && chunk + 2 <= chunks; chunk += 2) {
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
  };

  template <int kRows, int kCount>
  struct Sums {
    Floats low[kRows][kCount];
    Floats high[kRows][kCount];
  };

  // Values of kCount chunks of 32 elements from `chunk` on.
  template <int kRows, int kCount, bool kHalf>
  static HWY_NOINLINE void Walk(const Columns& columns, uint32_t chunk) {
    const Tile& tile = columns.tile;
    const Block& block = columns.block;
    Sums<kRows, kCount> sums;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kCount; ++c) {
        sums.low[r][c] = M::Zero();
        sums.high[r][c] = M::Zero();
      }
    }
    const uint16_t* v = reinterpret_cast<const uint16_t*>(tile.v) + chunk * 32;
    const uint32_t* weights = columns.weights;
    uint32_t t = block.begin;
    if (t % 2 != 0) {
      ValuePair<kRows, kCount, kHalf, kSecondOfPair>(nullptr, v + block.offsets[t], weights + t / 2,
                                                     sums);
      ++t;
    }
    const size_t pair_lines = tile.padded_dim / 32 * kTileLine;  // Both streams' lines count.
    const uint32_t end = block.end / 2 * 2;
    while (t < end) {
      const uint32_t group = t / kRunTokens;
      const uint32_t group_end = std::min(end, (group + 1) * kRunTokens);
      const size_t line = t % kRunTokens / 2 * pair_lines + chunk * kTileLine;
      const uint16_t* own = columns.ahead.own[group] + line;
      const uint16_t* other = columns.ahead.other[group] + line;
      if (IsRun(block, t)) {
        const uint16_t* row = v + block.offsets[t];
        for (; t < group_end; t += 2, row += 2 * tile.head_dim) {
          RequestOfPair<kAsked<kRows>, kCount>(own, other);
          ValuePair<kRows, kCount, kHalf, kBothOfPair>(row, row + tile.head_dim, weights + t / 2,
                                                       sums);
          own += pair_lines;
          other += pair_lines;
        }
      } else {
        for (; t < group_end; t += 2) {
          RequestOfPair<kAsked<kRows>, kCount>(own, other);
          ValuePair<kRows, kCount, kHalf, kBothOfPair>(
              v + block.offsets[t], v + block.offsets[t + 1], weights + t / 2, sums);
          own += pair_lines;
          other += pair_lines;
        }
      }
    }
    if (t < block.end) {
      ValuePair<kRows, kCount, kHalf, kFirstOfPair>(v + block.offsets[t], nullptr, weights + t / 2,
                                                    sums);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kCount; ++c) {
        float* out = columns.out + r * tile.padded_dim + (chunk + c) * 32;
        StoreSum<M>(sums.low[r][c], out);
        StoreSum<M>(sums.high[r][c], out + kPairLanes);
      }
    }
  }

  // Which tokens of a pair are seen.
  enum SeenOfPair : uint8_t { kBothOfPair, kFirstOfPair, kSecondOfPair };

  // Adds two tokens, zeros in place of one that is not seen.
  template <int kRows, int kCount, bool kHalf, SeenOfPair kSeen>
  static HWY_INLINE void ValuePair(const uint16_t* first, const uint16_t* second,
                                   const uint32_t* weights, Sums<kRows, kCount>& sums) {
    Words low[kCount];
    Words high[kCount];
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) {
      const Words a = Chunk<kHalf, kSeen != kSecondOfPair>(first, c);
      const Words b = Chunk<kHalf, kSeen != kFirstOfPair>(second, c);
      low[c] = M::Low(a, b);
      high[c] = M::High(a, b);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Words pair = M::Broadcast(weights[r * kPairStride]);
#pragma GCC unroll 4
      for (int c = 0; c < kCount; ++c) {
        sums.low[r][c] = M::Step(sums.low[r][c], pair, low[c]);
        sums.high[r][c] = M::Step(sums.high[r][c], pair, high[c]);
      }
    }
  }

  template <bool kHalf, bool kSeen>
  static HWY_INLINE Words Chunk(const uint16_t* row, int chunk) {
    if constexpr (!kSeen) {
      return M::Broadcast(0);
    } else if constexpr (kHalf) {
      return M::LoadHalf(row + chunk * 32);
    } else {
      return M::LoadWords(row + chunk * 32);
    }
  }

  // Asks for what a pair of tokens pays for in kCount chunks: their lines of both streams.
  template <AskedLines kLines, int kCount>
  static HWY_INLINE void RequestOfPair(const uint16_t* own, const uint16_t* other) {
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) {
      PrefetchLineOf<kLines>(own + c * kTileLine);
      PrefetchLineOf<kLines>(other + c * kTileLine);
    }
  }
};

}  // namespace
}  // namespace lamina::kernels::internal
