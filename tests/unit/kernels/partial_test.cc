// SPDX-License-Identifier: Apache-2.0
#include "kernels/partial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/canonical_math.h"
#include "kernels/span_partials.h"

namespace lamina::kernels {
namespace {

constexpr size_t kDim = 5;
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

struct Partial {
  std::vector<float> out = std::vector<float>(kDim, 0.0f);
  float lse = kEmpty;
};

std::vector<Partial> RandomPartials(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Partial> partials(count);
  for (Partial& p : partials) {
    p.lse = 5.0f + normal(random);
    for (float& x : p.out) {
      x = normal(random);
    }
  }
  return partials;
}

Partial Whole(const std::vector<Partial>& blocks) {
  PartialStack stack(kDim);
  for (size_t b = 0; b < blocks.size(); ++b) {
    stack.Push(static_cast<uint32_t>(b), 1, blocks[b].out.data(), blocks[b].lse);
  }
  Partial whole;
  stack.Fold(whole.out.data(), &whole.lse);
  return whole;
}

TEST(MergePartialsTest, WeighsByTheExponentialOfLse) {
  float out_a[2] = {1.0f, 0.0f};
  float lse_a = std::log(3.0f);
  const float out_b[2] = {5.0f, 4.0f};

  MergePartials(out_a, &lse_a, out_b, 0.0f, 2);

  EXPECT_NEAR(out_a[0], 2.0f, 1e-6);
  EXPECT_NEAR(out_a[1], 1.0f, 1e-6);
  EXPECT_NEAR(lse_a, std::log(4.0f), 1e-6);
}

TEST(MergePartialsTest, EmptyIsTheIdentityOnEitherSide) {
  const Partial p = RandomPartials(1, 1)[0];
  Partial left = p;
  MergePartials(left.out.data(), &left.lse, Partial().out.data(), kEmpty, kDim);
  Partial right;
  MergePartials(right.out.data(), &right.lse, p.out.data(), p.lse, kDim);

  EXPECT_EQ(left.out, p.out);
  EXPECT_EQ(left.lse, p.lse);
  EXPECT_EQ(right.out, p.out);
  EXPECT_EQ(right.lse, p.lse);
}

TEST(MergePartialsTest, TwoEmptiesAreEmpty) {
  Partial a;
  MergePartials(a.out.data(), &a.lse, Partial().out.data(), kEmpty, kDim);

  EXPECT_EQ(a.lse, kEmpty);
  EXPECT_EQ(a.out, std::vector<float>(kDim, 0.0f));
}

TEST(PartialStackTest, FoldOfNothingIsEmpty) {
  PartialStack stack(kDim);
  Partial p;
  p.out[0] = 7.0f;
  stack.Fold(p.out.data(), &p.lse);

  EXPECT_EQ(p.lse, kEmpty);
  EXPECT_EQ(p.out, std::vector<float>(kDim, 0.0f));
}

TEST(PartialStackTest, HoldsOnePartialForEachBitOfTheCount) {
  const std::vector<Partial> blocks = RandomPartials(13, 2);
  PartialStack stack(kDim);
  for (uint32_t b = 0; b < blocks.size(); ++b) {
    stack.Push(b, 1, blocks[b].out.data(), blocks[b].lse);
  }

  ASSERT_EQ(stack.size(), 3u);
  EXPECT_EQ(stack.entry(0).blocks, 8u);
  EXPECT_EQ(stack.entry(1).first_block, 8u);
  EXPECT_EQ(stack.entry(1).blocks, 4u);
  EXPECT_EQ(stack.entry(2).blocks, 1u);
}

TEST(PartialStackTest, MergesOnlyAlignedPairs) {
  const std::vector<Partial> blocks = RandomPartials(4, 3);
  PartialStack stack(kDim);
  for (uint32_t b = 1; b < 4; ++b) {  // 1 and 2 are equally long, but no pair of the tree.
    stack.Push(b, 1, blocks[b].out.data(), blocks[b].lse);
  }

  ASSERT_EQ(stack.size(), 2u);
  EXPECT_EQ(stack.entry(1).first_block, 2u);
  EXPECT_EQ(stack.entry(1).blocks, 2u);
}

// Every cut into three holders, each merging what it can, then one that continues the tree.
TEST(PartialStackTest, AnySplitOverHoldersGivesTheBitsOfOneHolder) {
  for (size_t count : {1, 2, 3, 7, 8, 21, 37}) {
    const std::vector<Partial> blocks = RandomPartials(count, 100 + static_cast<uint32_t>(count));
    const Partial whole = Whole(blocks);
    for (size_t cut_a = 0; cut_a <= count; ++cut_a) {
      for (size_t cut_b = cut_a; cut_b <= count; ++cut_b) {
        PartialStack joined(kDim);
        const size_t cuts[4] = {0, cut_a, cut_b, count};
        for (size_t h = 0; h < 3; ++h) {
          PartialStack holder(kDim);
          for (size_t b = cuts[h]; b < cuts[h + 1]; ++b) {
            holder.Push(static_cast<uint32_t>(b), 1, blocks[b].out.data(), blocks[b].lse);
          }
          EXPECT_LE(holder.size(), 2u * static_cast<size_t>(std::bit_width(count)));
          for (size_t i = 0; i < holder.size(); ++i) {
            const PartialStack::EntryView e = holder.entry(i);
            joined.Push(e.first_block, e.blocks, e.out, e.lse);
          }
        }
        Partial p;
        joined.Fold(p.out.data(), &p.lse);
        ASSERT_EQ(p.out, whole.out) << count << " cut at " << cut_a << " and " << cut_b;
        ASSERT_EQ(p.lse, whole.lse);
      }
    }
  }
}

TEST(PartialStackTest, EmptyBlocksShapeTheTreeLikeOneLongEmptyRun) {
  std::vector<Partial> blocks(6);
  const std::vector<Partial> tail = RandomPartials(5, 9);
  blocks.insert(blocks.end(), tail.begin(), tail.end());
  PartialStack stack(kDim);
  const Partial empty;
  stack.Push(0, 4, empty.out.data(), kEmpty);
  stack.Push(4, 2, empty.out.data(), kEmpty);
  for (uint32_t b = 0; b < tail.size(); ++b) {
    stack.Push(6 + b, 1, tail[b].out.data(), tail[b].lse);
  }
  Partial p;
  stack.Fold(p.out.data(), &p.lse);

  const Partial whole = Whole(blocks);
  EXPECT_EQ(p.out, whole.out);
  EXPECT_EQ(p.lse, whole.lse);
}

TEST(PartialStackDeathTest, RefusesAGap) {
  const Partial p = RandomPartials(1, 4)[0];
  PartialStack stack(kDim);
  stack.Push(0, 1, p.out.data(), p.lse);

  EXPECT_DEATH(stack.Push(2, 1, p.out.data(), p.lse), "");
}

// Each span is a node of the sequence's tree, and the last one the first merges of its fold.
TEST(SpanFoldTest, PartialsOfSpansFoldToTheWholeWithItsSink) {
  constexpr uint32_t kSpanBlocks = 2;
  AttentionDescriptor layer{.query_heads = 2, .kv_heads = 1, .head_dim = kDim};
  SpanFold fold(kDim, kSpanBlocks * kBlockTokens);
  for (const bool has_sinks : {false, true}) {
    layer.sinks = has_sinks ? std::vector<float>{-9.0f, 5.5f} : std::vector<float>();
    for (const size_t blocks : {1u, 2u, 3u, 4u, 5u, 7u, 8u}) {
      const std::vector<Partial> all = RandomPartials(blocks, static_cast<uint32_t>(blocks));
      for (size_t first = 0; first < blocks; first += kSpanBlocks) {
        const size_t end = std::min(blocks, first + kSpanBlocks);
        const Partial span = Whole({all.begin() + static_cast<std::ptrdiff_t>(first),
                                    all.begin() + static_cast<std::ptrdiff_t>(end)});
        std::vector<float> values = span.out;
        values.push_back(span.lse);
        fold.Add(values.data(), /*is_last=*/end == blocks);
      }
      std::vector<BFloat16> out(kDim);
      fold.Finish(layer, /*query_head=*/1, out.data());

      const Partial whole = Whole(all);
      const float share = has_sinks ? ShareWithSink(whole.lse, 5.5f) : 1.0f;
      for (size_t d = 0; d < kDim; ++d) {
        EXPECT_EQ(out[d].bits, canonical::RoundOutput(share * whole.out[d]).bits)
            << blocks << " blocks, element " << d;
      }
    }
  }
}

TEST(SeenOfSpanTest, AWindowHidesTheFirstTokensOrAll) {
  AttentionDescriptor layer{.query_heads = 1, .kv_heads = 1, .head_dim = kDim};
  EXPECT_EQ(SeenOf(layer, 700, 256, 256).first, 0u);
  EXPECT_EQ(SeenOf(layer, 700, 256, 256).last, 255u);
  EXPECT_EQ(SeenOf(layer, 700, 512, 256).last, 188u);
  layer.window = 200;  // Tokens 501 to 700.
  EXPECT_EQ(SeenOf(layer, 700, 256, 256).first, 245u);
  EXPECT_EQ(SeenOf(layer, 700, 256, 256).tokens(), 11u);
  EXPECT_FALSE(SeenOf(layer, 700, 256, 256).none());
  EXPECT_TRUE(SeenOf(layer, 700, 0, 256).none());
  EXPECT_EQ(SeenOf(layer, 700, 512, 256).tokens(), 189u);
  std::vector<float> partial(PartialWidth(layer), 1.0f);
  WriteEmptyPartial(layer, partial.data());
  EXPECT_EQ(partial, (std::vector<float>{0, 0, 0, 0, 0, kEmpty}));
}

}  // namespace
}  // namespace lamina::kernels
