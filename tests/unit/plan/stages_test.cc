// SPDX-License-Identifier: Apache-2.0
#include "plan/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/philox.h"

namespace lamina::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Finds the longest stage of a split, by adding up.
double LongestOf(const std::vector<double>& costs, const std::vector<StageNode>& stages,
                 const std::vector<uint32_t>& layers) {
  double longest = 0;
  size_t slice = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    double cost = 0;
    const size_t end = i + 1 == stages.size() ? costs.size() : slice + layers[i];
    for (; slice < end; ++slice) {
      cost += costs[slice];
    }
    longest = std::max(longest, cost / stages[i].speed);
  }
  return longest;
}

// The best of all splits, by trying them.
double BestOf(const std::vector<double>& costs, const std::vector<StageNode>& stages,
              std::vector<uint32_t>& layers, uint32_t left) {
  if (layers.size() + 1 == stages.size()) {
    layers.push_back(left);
    const double longest = LongestOf(costs, stages, layers);
    layers.pop_back();
    return longest;
  }
  double best = 1e300;
  const auto behind = static_cast<uint32_t>(stages.size() - layers.size() - 1);
  for (uint32_t count = 1; count + behind <= left; ++count) {
    layers.push_back(count);
    best = std::min(best, BestOf(costs, stages, layers, left - count));
    layers.pop_back();
  }
  return best;
}

TEST(StagesTest, TheLmHeadCountsForTheLastStage) {
  std::vector<double> costs(31, 3.5);  // SmolLM2: the head is as eight layers.
  costs.back() = 28 + 2.6;
  const auto split = SplitLayers(costs, {{.name = "c0"}, {.name = "c1"}});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->layers, ElementsAre(19, 11));
  EXPECT_EQ(split->why, "by cost");
  EXPECT_NEAR(split->busiest_share, 19 * 3.5 / (30 * 3.5 + 30.6), 0.03);
}

TEST(StagesTest, AFasterStageGetsMoreLayers) {
  const std::vector<double> costs(13, 1.0);
  const auto split = SplitLayers(costs, {{.name = "c0", .speed = 30}, {.name = "c1", .speed = 10}});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->layers, ElementsAre(10, 2));  // And the head: 10 and 3 slices.
  EXPECT_EQ(split->why, "by cost and measured speed: c0 1.50, c1 0.50");
  const auto alike = SplitLayers(costs, {{.name = "c0", .speed = 32}, {.name = "c1", .speed = 30}});
  ASSERT_TRUE(alike.ok()) << alike.status();
  EXPECT_THAT(alike->layers, ElementsAre(6, 6));
  EXPECT_EQ(alike->why, "by cost and measured speed: c0 1.00, c1 1.00");
  // One that is not known makes them equal.
  const auto half_known = SplitLayers(costs, {{.name = "c0", .speed = 30}, {.name = "c1"}});
  ASSERT_TRUE(half_known.ok()) << half_known.status();
  EXPECT_THAT(half_known->layers, ElementsAre(6, 6));
}

TEST(StagesTest, NoSplitIsBetter) {
  Prng random(3);
  for (int round = 0; round < 300; ++round) {
    const auto count = static_cast<uint32_t>(1 + random.Below(4));
    const auto layers = static_cast<uint32_t>(count + random.Below(8));
    std::vector<double> costs;
    for (uint32_t i = 0; i <= layers; ++i) {
      costs.push_back(1.0 + static_cast<double>(random.Below(9)));
    }
    std::vector<StageNode> stages;
    for (uint32_t i = 0; i < count; ++i) {
      stages.push_back({.name = "c", .speed = 1.0 + static_cast<double>(random.Below(5))});
    }

    const auto split = SplitLayers(costs, stages);

    ASSERT_TRUE(split.ok()) << split.status();
    ASSERT_EQ(split->layers.size(), count);
    EXPECT_EQ(std::accumulate(split->layers.begin(), split->layers.end(), 0u), layers);
    EXPECT_GT(*std::min_element(split->layers.begin(), split->layers.end()), 0u);
    std::vector<uint32_t> tried;
    EXPECT_DOUBLE_EQ(LongestOf(costs, stages, split->layers), BestOf(costs, stages, tried, layers));
    std::vector<Stage> nodes;
    for (uint32_t first = 0; const uint32_t own : split->layers) {
      nodes.push_back({.first_layer = first, .layers = own});
      first += own;
    }
    EXPECT_TRUE(CheckStages(nodes, layers).ok());
  }
}

TEST(StagesTest, MoreStagesThanLayersAreRefused) {
  const auto split =
      SplitLayers(std::vector<double>(3, 1.0), {{.name = "c0"}, {.name = "c1"}, {.name = "c2"}});
  EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(split.status().message(), HasSubstr("c0 to c2"));
}

TEST(StagesTest, StagesWithGapsOverlapsOrMissingReplicasAreRefused) {
  const auto check = [](const std::vector<Stage>& nodes) { return CheckStages(nodes, 4).code(); };
  constexpr absl::StatusCode kBad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(check({{0, 2, 2}, {0, 0, 2}, {1, 0, 4}}), absl::StatusCode::kOk);
  EXPECT_EQ(check({{0, 0, 2}, {0, 3, 1}}), kBad);
  EXPECT_EQ(check({{0, 0, 3}, {0, 2, 2}}), kBad);
  EXPECT_EQ(check({{0, 0, 3}}), kBad);
  EXPECT_EQ(check({{0, 0, 5}}), kBad);
  EXPECT_EQ(check({{0, 0, 4}, {0, 4, 0}}), kBad);
  EXPECT_EQ(check({{0, 0, 4}, {2, 0, 4}}), kBad);
  EXPECT_EQ(check({{0, UINT32_MAX, 2}, {0, 0, 4}}), kBad);
}

// SmolLM2: 3 KV heads with 3 query heads each, 1536 columns of the MLP.
ShardCosts SmolLm2() { return {.heads = 3, .columns = 1536, .head = 294912, .column = 1728}; }

double CostOf(const ShardCosts& costs, const ShardPart& part) {
  return part.heads * costs.head + part.columns * costs.column;
}

TEST(ShardsTest, ColumnsMakeUpForUnevenHeads) {
  const auto two = SplitShards(SmolLm2(), {"c0", "c1"});
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->parts[0], (ShardPart{0, 2, 0, 2, 0, 704}));
  EXPECT_EQ(two->parts[1], (ShardPart{1, 2, 2, 1, 704, 832}));
  EXPECT_EQ(two->why, "of 3 KV heads and 1536 MLP columns c0 2 and 704, c1 1 and 832, by cost");
  const auto three = SplitShards(SmolLm2(), {"a", "b", "c"});
  ASSERT_TRUE(three.ok()) << three.status();
  for (const ShardPart& part : three->parts) {
    EXPECT_EQ(part.heads, 1u);
    EXPECT_EQ(part.columns, 512u);
  }
}

// All heads and columns are somebody's; columns go where there is least, so that nobody has more
// than its share by more than a block of them, unless it is by a head.
TEST(ShardsTest, SplitsAreWholeAndEven) {
  Prng random(5);
  for (int round = 0; round < 300; ++round) {
    const auto count = static_cast<uint32_t>(2 + random.Below(3));
    const ShardCosts costs{.heads = static_cast<uint32_t>(count + random.Below(8)),
                           .columns = static_cast<uint32_t>(count + random.Below(3000)),
                           .head = 1.0 + static_cast<double>(random.Below(2000)),
                           .column = 1.0 + static_cast<double>(random.Below(20))};

    const auto split = SplitShards(costs, std::vector<std::string>(count, "c"));

    ASSERT_TRUE(split.ok()) << split.status();
    std::vector<Stage> nodes;
    uint32_t columns = 0;
    double total = 0;
    for (const ShardPart& part : split->parts) {
      nodes.push_back({.layers = 4, .shard = part});
      columns += part.columns;
      total += CostOf(costs, part);
    }
    EXPECT_TRUE(CheckShards(nodes, costs.heads).ok());
    EXPECT_TRUE(CheckStages(nodes, 4).ok());
    EXPECT_EQ(columns, costs.columns);
    for (const ShardPart& part : split->parts) {
      const double share = total / count;
      EXPECT_LE(CostOf(costs, part), std::max(share, part.heads * costs.head) + 64 * costs.column);
    }
  }
}

// A replica has at most as many shards as there may be compute nodes, 128.
TEST(ShardsTest, ThirtyTwoAndMoreAreWhole) {
  for (const uint32_t count : {31u, 32u, 33u, 64u, 128u}) {
    const ShardCosts costs{.heads = 128, .columns = 28672, .head = 1000, .column = 10};
    const auto split = SplitShards(costs, std::vector<std::string>(count, "c"));
    ASSERT_TRUE(split.ok()) << split.status();
    std::vector<Stage> nodes;
    for (const ShardPart& part : split->parts) {
      nodes.push_back({.layers = 4, .shard = part});
    }

    const absl::Status whole = CheckShards(nodes, costs.heads);
    nodes.erase(nodes.begin() + 31 % count);
    const absl::Status one_missing = CheckShards(nodes, costs.heads);

    EXPECT_TRUE(whole.ok()) << whole;
    EXPECT_EQ(one_missing.code(), absl::StatusCode::kInvalidArgument) << count << " shards";
  }
}

TEST(ShardsTest, MoreShardsThanHeadsAreRefused) {
  const auto split = SplitShards(SmolLm2(), std::vector<std::string>(4));
  EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(split.status().message(),
              HasSubstr("this model has 3 KV heads and 1536 columns: take "
                        "fewer shards, or stages"));
}

TEST(ShardsTest, ShardsThatDoNotHaveEveryHeadOnceAreRefused) {
  const ShardPart a{0, 2, 0, 2, 0, 10};
  const ShardPart b{1, 2, 2, 1, 10, 5};
  const auto check = [](const std::vector<ShardPart>& parts) {
    std::vector<Stage> nodes;
    for (const ShardPart& part : parts) {
      nodes.push_back({.layers = 4, .shard = part});
    }
    return CheckShards(nodes, 3).code();
  };
  constexpr absl::StatusCode kBad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(check({a, b}), absl::StatusCode::kOk);
  EXPECT_EQ(check({b, a}), absl::StatusCode::kOk);
  EXPECT_EQ(check({{}}), absl::StatusCode::kOk);
  EXPECT_EQ(check({a}), kBad);
  EXPECT_EQ(check({a, a}), kBad);
  EXPECT_EQ(check({a, {}}), kBad);
  EXPECT_EQ(check({{}, a}), kBad);
  EXPECT_EQ(check({a, {1, 2, 1, 2, 10, 5}}), kBad);
  EXPECT_EQ(check({a, {1, 2, 2, 1, 11, 5}}), kBad);
  EXPECT_EQ(check({a, {1, 2, 2, 1, 10, 0}}), kBad);
  EXPECT_EQ(check({a, {1, 3, 2, 1, 10, 5}}), kBad);
  EXPECT_EQ(check({a, {UINT32_MAX, 2, 2, 1, 10, 5}}), kBad);
  std::vector<Stage> twice = {{0, 0, 2, a}, {0, 0, 2, b}, {0, 2, 2, a}};
  EXPECT_EQ(CheckShards(twice, 3).code(), kBad);  // The second stage is not whole.
  twice.push_back({0, 2, 2, b});
  EXPECT_TRUE(CheckShards(twice, 3).ok());
  EXPECT_TRUE(CheckStages(twice, 4).ok());
  twice[3].shard.heads = 2;
  EXPECT_EQ(CheckShards(twice, 3).code(), kBad);  // Another split there.
}

}  // namespace
}  // namespace lamina::plan
