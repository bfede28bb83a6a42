// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/philox.h"

namespace lamina::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of a split, by adding up.
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

}  // namespace
}  // namespace lamina::core
