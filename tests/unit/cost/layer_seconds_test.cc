// SPDX-License-Identifier: Apache-2.0
#include "cost/layer_seconds.h"

#include <gtest/gtest.h>

namespace lamina::cost {
namespace {

constexpr UnitTimes kSlice{.fixed = 1e-3, .slope = 1e-5};
constexpr UnitTimes kFast{.fixed = 2e-5, .slope = 1e-6};
constexpr UnitTimes kSlow{.fixed = 1e-5, .slope = 3e-6};

TEST(LaneCostsOfTest, NothingIsMeasuredUntilBothPoolsAre) {
  EXPECT_FALSE(LaneCostsOf({}).measured);
  EXPECT_FALSE(LaneCostsOf({.compute = {kSlice}, .memory = {{}}}).measured);
  EXPECT_FALSE(LaneCostsOf({.compute = {{}}, .memory = {kFast}}).measured);
  EXPECT_TRUE(LaneCostsOf({.compute = {kSlice}, .memory = {kFast}}).measured);
}

// One lane is the fastest then: others would read the weights again.
TEST(LaneCostsOfTest, WhereNoMemoryNodeAttendsLanesHideNothing) {
  const LaneCosts costs = LaneCostsOf({.compute = {kSlice}, .memory = {}});
  EXPECT_TRUE(costs.measured);
  const LaneWork work{.rows = 16, .context_tokens = 16000};
  EXPECT_DOUBLE_EQ(LayerSeconds(costs, work, 1), 1e-3 + 16e-5);
  EXPECT_DOUBLE_EQ(LayerSeconds(costs, work, 2), 2 * (1e-3 + 8e-5));
}

TEST(LaneCostsOfTest, SlicesAreTheMeanOfTheNodesThatDecode) {
  const LaneCosts costs = LaneCostsOf(
      {.compute = {kSlice, {.fixed = 3e-3, .slope = 3e-5}, {}}, .memory = {kFast}, .replicas = 2});
  EXPECT_DOUBLE_EQ(costs.slice_fixed, 2e-3);
  EXPECT_DOUBLE_EQ(costs.slice_per_row, 2e-5);
  EXPECT_EQ(costs.replicas, 2u);
}

TEST(LaneCostsOfTest, MemoryNodesShareTheContextByTheirSpeed) {
  const LaneCosts costs = LaneCostsOf({.compute = {kSlice}, .memory = {kFast, kSlow}});
  EXPECT_DOUBLE_EQ(costs.attention_fixed, 2e-5);
  EXPECT_DOUBLE_EQ(costs.attention_per_token, 1 / (1 / 1e-6 + 1 / 3e-6));
}

TEST(LaneCostsOfTest, HeadsThatAreSpreadWaitForTheSlowest) {
  const LaneCosts costs =
      LaneCostsOf({.compute = {kSlice}, .memory = {kFast, kSlow}, .heads_spread = true});
  EXPECT_DOUBLE_EQ(costs.attention_per_token, 3e-6);
}

TEST(LaneCostsOfTest, ShardsAreAnsweredOneAfterTheOther) {
  const LaneCosts costs = LaneCostsOf({.compute = {kSlice}, .memory = {kSlow}, .shards = 2});
  EXPECT_DOUBLE_EQ(costs.attention_fixed, 2e-5);
  EXPECT_DOUBLE_EQ(costs.attention_per_token, 6e-6);
}

// By arithmetic: two lanes of 8 rows and 8,000 tokens.
TEST(LayerSecondsTest, IsTheLongestOfReplicaPoolAndOneLane) {
  const LaneCosts costs{.slice_fixed = 1e-3,
                        .slice_per_row = 1e-4,
                        .attention_fixed = 0,
                        .attention_per_token = 1e-7};
  const LaneWork work{.rows = 16, .context_tokens = 16000};
  EXPECT_DOUBLE_EQ(LayerSeconds(costs, work, 1), 1e-3 + 16e-4 + 16e-4);
  EXPECT_DOUBLE_EQ(LayerSeconds(costs, work, 2), 2 * (1e-3 + 8e-4));
}

TEST(ExchangeSecondsTest, ChunksHideAllButAPartOfTheShorter) {
  EXPECT_DOUBLE_EQ(ExchangeSeconds(1, 2e-3, 3e-3, 1e-5), 5e-3);
  EXPECT_DOUBLE_EQ(ExchangeSeconds(4, 2e-3, 3e-3, 1e-5), 3e-3 + 0.5e-3 + 3e-5);
  EXPECT_DOUBLE_EQ(ExchangeSeconds(4, 3e-3, 2e-3, 0), 3.5e-3);
}

}  // namespace
}  // namespace lamina::cost
