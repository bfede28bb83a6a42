// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/head_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/philox.h"

namespace lamina::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<AttentionDescriptor> Layers(uint32_t kv_heads, uint32_t count = 2) {
  return std::vector<AttentionDescriptor>(
      count, {.query_heads = 3 * kv_heads, .kv_heads = kv_heads, .head_dim = 64});
}

// One KV head of one token takes so many.
constexpr uint64_t kHeadBytes = 2 * 2 * 64 * 2;

std::vector<uint32_t> CountsOf(const HeadSplit& split) {
  std::vector<uint32_t> counts;
  for (const HeadRange& range : split.heads) {
    counts.push_back(range.count);
  }
  return counts;
}

TEST(ShareHeadsTest, EvenNodesGetEvenShares) {
  const std::vector<HeadNode> nodes = {{"m0", 1e9, 1000 * kHeadBytes},
                                       {"m1", 1e9, 1000 * kHeadBytes}};
  const auto split = ShareHeads(Layers(4), nodes, 10);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->heads, (std::vector<HeadRange>{{0, 2}, {2, 2}}));
  EXPECT_EQ(split->slots, 500u);
  EXPECT_DOUBLE_EQ(split->imbalance, 1.0);
}

TEST(ShareHeadsTest, HeadsThatDoNotDivideShowTheImbalance) {
  const std::vector<HeadNode> nodes = {{"m0", 2e9, 900 * kHeadBytes},
                                       {"m1", 2e9, 600 * kHeadBytes}};
  const auto split = ShareHeads(Layers(3), nodes, 10);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(CountsOf(*split), (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(split->slots, 450u);
  EXPECT_NEAR(split->imbalance, 4.0 / 3, 1e-12);
  EXPECT_THAT(DescribeSplit(*split, nodes),
              AllOf(HasSubstr("m0 2, m1 1 of 3 KV heads"), HasSubstr("1.33 times"),
                    HasSubstr("m0 has the least room")));
}

TEST(ShareHeadsTest, BandwidthDecides) {
  const std::vector<HeadNode> nodes = {{"a", 3e9, 1 << 20}, {"b", 1e9, 1 << 20}};
  const auto split = ShareHeads(Layers(8), nodes, 1);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(CountsOf(*split), (std::vector<uint32_t>{6, 2}));
  EXPECT_DOUBLE_EQ(split->imbalance, 1.0);
}

TEST(ShareHeadsTest, CapacityBoundsAShare) {
  const std::vector<HeadNode> nodes = {{"a", 9e9, 25 * kHeadBytes}, {"b", 1e9, 100 * kHeadBytes}};
  const auto split = ShareHeads(Layers(8), nodes, 10);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(CountsOf(*split), (std::vector<uint32_t>{2, 6}));
  EXPECT_EQ(split->slots, 12u);
  EXPECT_EQ(split->tightest, 0u);
}

TEST(ShareHeadsTest, OpenBlocksOfInt8AreSharedLikeTheirHeads) {
  const std::vector<AttentionDescriptor> layers = Layers(4);
  const KvLayout layout{.form = KvForm::kInt8, .tails = 2};
  const uint64_t capacity = layout.CapacityFor(1000, layers) / 2;  // There is room for two heads.
  const std::vector<HeadNode> nodes = {{.name = "m0", .capacity_bytes = capacity},
                                       {.name = "m1", .capacity_bytes = capacity + 1}};
  const auto split = ShareHeads(layers, nodes, 1000, layout);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->slots, 1000u);
  EXPECT_FALSE(ShareHeads(layers, nodes, 1001, layout).ok());
}

TEST(ShareHeadsTest, WhatASlotTakesBesidesKAndVCounts) {
  const std::vector<HeadNode> nodes = {{"m0", 1e9, 30 * kHeadBytes}, {"m1", 1e9, 30 * kHeadBytes}};
  const auto split = ShareHeads(Layers(4), nodes, 10, {}, kHeadBytes / 2);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->slots, 10u);
  EXPECT_FALSE(ShareHeads(Layers(4), nodes, 11, {}, kHeadBytes / 2).ok());
}

TEST(ShareHeadsTest, MoreNodesThanHeadsIsAnError) {
  const std::vector<HeadNode> nodes(4, {"m", 1e9, 1 << 20});
  const auto split = ShareHeads(Layers(3), nodes, 1);
  EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(split.status().message()),
              AllOf(HasSubstr("4 memory nodes"), HasSubstr("3 KV heads")));
}

TEST(ShareHeadsTest, LayersThatDifferAreAnError) {
  std::vector<AttentionDescriptor> layers = Layers(4);
  layers.push_back({.query_heads = 4, .kv_heads = 2, .head_dim = 64});
  const std::vector<HeadNode> nodes = {{"m0", 1e9, 1 << 20}};
  EXPECT_EQ(ShareHeads(layers, nodes, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ShareHeadsTest, ANodeTooSmallForOneHeadIsNamed) {
  const std::vector<HeadNode> nodes = {{"big", 1e9, 1 << 30}, {"small", 1e9, 99 * kHeadBytes}};
  const auto split = ShareHeads(Layers(4), nodes, 100);
  EXPECT_EQ(split.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(split.status().message()),
              AllOf(HasSubstr("memory node small"), HasSubstr("100 tokens")));
}

TEST(ShareHeadsTest, TooLittleRoomInAllIsAnError) {
  const std::vector<HeadNode> nodes(2, {"m", 1e9, 100 * kHeadBytes});
  const auto split = ShareHeads(Layers(4), nodes, 100);
  EXPECT_EQ(split.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(split.status().message()), HasSubstr("room for 2 of 4 KV heads"));
}

// Over every split there is.
double LeastLongestTime(const std::vector<HeadNode>& nodes, size_t node, uint32_t heads) {
  if (node + 1 == nodes.size()) {
    return heads == 0 ? 1e300 : heads / nodes[node].bandwidth;
  }
  double best = 1e300;
  for (uint32_t own = 1; own <= heads; ++own) {
    best = std::min(best, std::max(own / nodes[node].bandwidth,
                                   LeastLongestTime(nodes, node + 1, heads - own)));
  }
  return best;
}

TEST(ShareHeadsTest, NoSplitIsFaster) {
  Prng random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<HeadNode> nodes;
    const auto count = 1 + random.Below(4);
    for (uint64_t i = 0; i < count; ++i) {
      nodes.push_back({absl::StrCat("m", i), static_cast<double>(1 + random.Below(10)), 1 << 30});
    }
    const auto heads = static_cast<uint32_t>(count + random.Below(9));
    const auto split = ShareHeads(Layers(heads), nodes, 1);
    ASSERT_TRUE(split.ok()) << split.status();
    double longest = 0;
    uint32_t next = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      EXPECT_EQ(split->heads[i].first, next);
      next += split->heads[i].count;
      longest = std::max(longest, split->heads[i].count / nodes[i].bandwidth);
    }
    EXPECT_EQ(next, heads);
    EXPECT_DOUBLE_EQ(longest, LeastLongestTime(nodes, 0, heads));
  }
}

TEST(PartOfTest, KeepsTheGroups) {
  const AttentionDescriptor layer{
      .query_heads = 9, .kv_heads = 3, .head_dim = 64, .scale = 0.125f, .window = 7};
  const AttentionDescriptor part = PartOf(layer, {.first = 1, .count = 2});
  EXPECT_EQ(part.query_heads, 6u);
  EXPECT_EQ(part.kv_heads, 2u);
  EXPECT_EQ(part.group(), layer.group());
  EXPECT_EQ(part.window, 7u);
}

}  // namespace
}  // namespace lamina::core
