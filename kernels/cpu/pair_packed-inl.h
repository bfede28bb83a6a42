// SPDX-License-Identifier: Apache-2.0
//
// Weights and values in pairs of bf16 of many rows: K and V of the block are packed into words of
// pairs once, and a tile of up to six rows by four vectors multiplies them from the cache.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/pair_pack-inl.h"
#include "kernels/cpu/pair_rows-inl.h"
#include "kernels/cpu/pair_values-inl.h"

namespace lamina::kernels::internal {
namespace {

template <class M>
class PackedPairs {
 public:
  using Floats = typename M::Floats;
  using Words = typename M::Words;

  // Weights of all rows. Scores of some rows lie in the first cache until they have become weights,
  // next to a panel of K; the next rows' take their place.
  static void Weights(const Tile& tile, const Block& block, Workspace& work) {
    Packing::PackK(tile, block, tile.head_dim / 2, work);
    for (uint32_t first = 0; first < tile.rows(); first += kRowsTogether) {
      const uint32_t end = std::min(first + kRowsTogether, tile.rows());
      Scores(tile, block, first, end, work);
      PairRows<M>::FindWeights(tile, block, first, end, work);
    }
  }

  static void Values(const Tile& tile, const Block& block, Workspace& work) {
    Packing::ForPackedV(tile, block, work, [&](uint32_t first, uint32_t end) {
      MultiplyValues(tile, block, first, end, work);
    });
  }

 private:
  using Packing = PairPacking<M, 2>;

  // 24 sums, four vectors and a broadcast pair fit 32 registers, and two instructions of six cycles
  // each can always be under way.
  static constexpr uint32_t kRowsAtOnce = 6;
  static constexpr uint32_t kStripsAtOnce = 4;
  static constexpr uint32_t kRowsTogether = 2 * kRowsAtOnce;

  // Scores of rows [first, end), by K that is packed.
  static void Scores(const Tile& tile, const Block& block, uint32_t first, uint32_t end,
                     Workspace& work) {
    const uint32_t lines = tile.head_dim / 2;
    const size_t strip_words = size_t{lines} * kPairLanes;
    constexpr uint32_t kPanel = kStripsAtOnce * kRunTokens;
    for (uint32_t t = block.begin / kPanel * kPanel; t < block.end; t += kPanel) {
      ForRows<kRowsAtOnce>(
          tile, block, first, end, [&](uint32_t row, uint32_t rows, TokenRange range) {
            const uint32_t from = std::max(t, range.begin / kRunTokens * kRunTokens);
            const uint32_t to = std::min(t + kPanel, range.end);
            if (from < to) {
              Multiply(rows, (to - from + kRunTokens - 1) / kRunTokens, work.pairs.q + row * lines,
                       lines, work.pairs.k + from / kRunTokens * strip_words, strip_words, lines,
                       work.scores + size_t{row - first} * kScoreStride + from, kScoreStride);
            }
          });
    }
  }

  // kRows rows of words times kStrips strips, `steps` words of a row each. Scores end as sums of
  // values do: the sign of their zeros vanishes in weights and lse.
  template <int kRows, int kStrips>
  static HWY_INLINE void MultiplyTile(const uint32_t* a, size_t a_stride, const uint32_t* b,
                                      size_t strip_words, uint32_t steps, float* out,
                                      size_t out_stride) {
    Floats sums[kRows][kStrips];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int s = 0; s < kStrips; ++s) {
        sums[r][s] = M::Zero();
      }
    }
#pragma GCC unroll 1
    for (uint32_t step = 0; step < steps; ++step) {
      Words words[kStrips];
#pragma GCC unroll 4
      for (int s = 0; s < kStrips; ++s) {
        words[s] = M::LoadWords(b + s * strip_words + step * kPairLanes);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Words pair = M::Broadcast(a[r * a_stride + step]);
#pragma GCC unroll 4
        for (int s = 0; s < kStrips; ++s) {
          sums[r][s] = M::Step(sums[r][s], pair, words[s]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int s = 0; s < kStrips; ++s) {
        StoreSum<M>(sums[r][s], out + r * out_stride + s * kPairLanes);
      }
    }
  }

  template <int kStrips>
  static HWY_NOINLINE void MultiplyRows(uint32_t rows, const uint32_t* a, size_t a_stride,
                                        const uint32_t* b, size_t strip_words, uint32_t steps,
                                        float* out, size_t out_stride) {
    switch (rows) {
      case 6:
        return MultiplyTile<6, kStrips>(a, a_stride, b, strip_words, steps, out, out_stride);
      case 5:
        return MultiplyTile<5, kStrips>(a, a_stride, b, strip_words, steps, out, out_stride);
      case 4:
        return MultiplyTile<4, kStrips>(a, a_stride, b, strip_words, steps, out, out_stride);
      case 3:
        return MultiplyTile<3, kStrips>(a, a_stride, b, strip_words, steps, out, out_stride);
      case 2:
        return MultiplyTile<2, kStrips>(a, a_stride, b, strip_words, steps, out, out_stride);
      default:
        return MultiplyTile<1, kStrips>(a, a_stride, b, strip_words, steps, out, out_stride);
    }
  }

  static HWY_INLINE void Multiply(uint32_t rows, uint32_t strips, const uint32_t* a,
                                  size_t a_stride, const uint32_t* b, size_t strip_words,
                                  uint32_t steps, float* out, size_t out_stride) {
    switch (strips) {
      case 4:
        return MultiplyRows<4>(rows, a, a_stride, b, strip_words, steps, out, out_stride);
      case 3:
        return MultiplyRows<3>(rows, a, a_stride, b, strip_words, steps, out, out_stride);
      case 2:
        return MultiplyRows<2>(rows, a, a_stride, b, strip_words, steps, out, out_stride);
      default:
        return MultiplyRows<1>(rows, a, a_stride, b, strip_words, steps, out, out_stride);
    }
  }

  // Sums of values of rows [first, end).
  static void MultiplyValues(const Tile& tile, const Block& block, uint32_t first, uint32_t end,
                             Workspace& work) {
    constexpr size_t kStripWords = Packing::kValueStripWords;
    const uint32_t strips = tile.padded_dim / kPairLanes;
    for (uint32_t strip = 0; strip < strips; strip += kStripsAtOnce) {
      ForRows<kRowsAtOnce>(
          tile, block, first, end, [&](uint32_t row, uint32_t rows, TokenRange range) {
            const uint32_t pair = range.begin / 2;
            Multiply(rows, std::min(kStripsAtOnce, strips - strip),
                     work.pairs.p + row * kPairStride + pair, kPairStride,
                     work.pairs.v + strip * kStripWords + pair * kPairLanes, kStripWords,
                     (range.end + 1) / 2 - pair, TopOfStack(tile, work, row) + strip * kPairLanes,
                     tile.padded_dim);
          });
    }
  }
};

}  // namespace
}  // namespace lamina::kernels::internal
