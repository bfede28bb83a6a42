// SPDX-License-Identifier: Apache-2.0
//
// What the arithmetics whose weights are bf16 have in common, in pairs and in tiles: weights from
// scores, and outputs from the stack.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/base.h"
#include "kernels/canonical_math.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/pair_values-inl.h"
#include "kernels/pair_math.h"
#include "kernels/partial.h"

namespace lamina::kernels::internal {
namespace {

// Which of tokens t to t + 15 are in the range, a bit each.
HWY_INLINE uint32_t SeenLanes(TokenRange range, uint32_t t) {
  const uint32_t begin = range.begin > t ? std::min(range.begin - t, 16u) : 0;
  const uint32_t end = range.end > t ? std::min(range.end - t, 16u) : 0;
  return end <= begin ? 0 : ((1u << end) - 1) & ~((1u << begin) - 1);
}

template <class M>
class PairRows {
 public:
  using Floats = typename M::Floats;
  using Words = typename M::Words;

  static const MergeOps& Merge() {
    static const MergeOps& merge = SupportedAttentionOps()[0]->merge;
    return merge;
  }

  // Weights of all rows from their scores; those of tokens that a row does not see, but another row
  // of the tile may, are zeros.
  static void FindWeights(const Tile& tile, const Block& block, Workspace& work) {
    FindWeights(tile, block, 0, tile.rows(), work);
  }

  // Those of rows [first, end), whose scores lie in the first rows of `work.scores`. Rows follow
  // each other in both loops: of a single one, each step would wait for the last.
  static void FindWeights(const Tile& tile, const Block& block, uint32_t first, uint32_t end,
                          Workspace& work) {
    for (uint32_t row = first; row < end; ++row) {
      const TokenRange range = SeenInBlock(tile, block, row);
      float* s = work.scores + size_t{row - first} * kScoreStride;
      if (tile.soft_cap > 0.0f) {
        CapScores(tile, block, s);
      }
      work.peak[row] = range.empty() ? -std::numeric_limits<float>::infinity() : Peak(range, s);
    }
    const float power = Factor(tile) * canonical::kLog2E;
    for (uint32_t row = first; row < end; ++row) {
      const TokenRange range = SeenInBlock(tile, block, row);
      uint32_t* p = work.pairs.p + size_t{row} * kPairStride;
      if (range.empty()) {
        std::fill(p + block.begin / 32 * 16, p + (block.end + 31) / 32 * 16, 0u);
        work.sum[row] = 1.0f;
      } else {
        work.sum[row] = Weigh(block, range, work.scores + size_t{row - first} * kScoreStride,
                              work.peak[row], power, p);
        work.peak[row] *= Factor(tile);
      }
    }
  }

  // Folds the stack from the top and rounds the result.
  static void End(const Tile& tile, Workspace& work) {
    while (work.depth > 1) {
      Merge().merge_top_two(tile, work);
    }
    for (uint32_t row = 0; row < tile.rows(); ++row) {
      const uint32_t token = row / tile.group;
      const uint32_t head = row % tile.group;
      const float* from = work.stack + size_t{row} * tile.padded_dim;
      if (tile.partial != nullptr) {
        float* to = tile.partial + (size_t{token} * tile.query_heads + head) * tile.partial_stride;
        for (uint32_t i = 0; i < tile.head_dim; ++i) {
          to[i] = from[PlaceOnStack(i)];
        }
        to[tile.head_dim] = work.stack_lse[row];
        continue;
      }
      BFloat16* to = tile.out + token * tile.out_stride + size_t{head} * tile.head_dim;
      const float share =
          tile.sinks == nullptr ? 1.0f : ShareWithSink(work.stack_lse[row], tile.sinks[head]);
      for (uint32_t i = 0; i < tile.head_dim; i += 2 * kPairLanes) {
        M::StoreOutput(share, M::Load(from + i), M::Load(from + i + kPairLanes),
                       i + 2 * kPairLanes > tile.head_dim, to + i);
      }
    }
  }

 private:
  // Where on the stack element `i` of a head is: interleaving two rows of V leaves it there.
  static constexpr size_t PlaceOnStack(size_t i) {
    return i / 32 * 32 + i / 4 % 2 * 16 + i % 32 / 8 * 4 + i % 4;
  }

  // Scores, or with a soft cap capped ones, and what makes them natural ones.
  static float Factor(const Tile& tile) { return tile.soft_cap > 0.0f ? 1.0f : tile.scale; }

  static HWY_NOINLINE void CapScores(const Tile& tile, const Block& block, float* s) {
    const uint32_t from = block.begin / 16 * 16;
    const uint32_t to = (block.end + 15) / 16 * 16;
    for (uint32_t t = from; t < to; t += kPairLanes) {
      M::Store(M::Multiply(M::Load(s + t), M::Set(tile.scale)), s + t);
    }
    Merge().cap(tile.soft_cap, s + from, to - from);
  }

  // The largest score of a range.
  static HWY_INLINE float Peak(TokenRange range, const float* s) {
    const uint32_t whole = (range.begin + 15) / 16 * 16;
    const uint32_t whole_end = std::max(whole, range.end / 16 * 16);
    Floats peaks = M::Set(-std::numeric_limits<float>::infinity());
    if (range.begin < whole) {
      const uint32_t t = whole - 16;
      peaks = M::LargerOfSeen(SeenLanes(range, t), M::Load(s + t), peaks);
    }
    for (uint32_t t = whole; t < whole_end; t += kPairLanes) {
      peaks = M::Larger(M::Load(s + t), peaks);
    }
    if (whole_end < range.end) {
      peaks = M::LargerOfSeen(SeenLanes(range, whole_end), M::Load(s + whole_end), peaks);
    }
    return M::Largest(peaks);
  }

  // A row's weights. Returns their sum.
  static HWY_INLINE float Weigh(const Block& block, TokenRange range, const float* s, float peak,
                                float power, uint32_t* p) {
    constexpr uint32_t kStep = 2 * kPairLanes;
    const Words ones = M::Broadcast(pairs::kOnes);
    Floats sums = M::Zero();
    const auto some = [&](uint32_t t) {
      const Words weights =
          M::WeightsOfSeen(SeenLanes(range, t), SeenLanes(range, t + kPairLanes), M::Load(s + t),
                           M::Load(s + t + kPairLanes), peak, power);
      M::StoreWords(weights, p + t / 2);
      sums = M::Step(sums, weights, ones);
    };
    uint32_t t = block.begin / kStep * kStep;
    for (; t + kStep <= range.begin; t += kStep) {
      M::StoreWords(M::Broadcast(0), p + t / 2);
    }
    if (t < range.begin) {
      some(t);
      t += kStep;
    }
    for (; t + kStep <= range.end; t += kStep) {
      const Words weights = M::Weights(M::Load(s + t), M::Load(s + t + kPairLanes), peak, power);
      M::StoreWords(weights, p + t / 2);
      sums = M::Step(sums, weights, ones);
    }
    if (t < range.end) {
      some(t);
      t += kStep;
    }
    for (; t < block.end; t += kStep) {
      M::StoreWords(M::Broadcast(0), p + t / 2);
    }
    return M::SumOfLanes(sums);
  }
};

}  // namespace
}  // namespace lamina::kernels::internal
