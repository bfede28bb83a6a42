// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/lane_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Slices bound by reading the weights, attention by reading K and V.
cost::LaneCosts Costs() {
  return {.slice_fixed = 1e-3,
          .slice_per_row = 1e-5,
          .attention_fixed = 1e-5,
          .attention_per_token = 1e-6,
          .measured = true};
}

TEST(LaneCountTest, AConfiguredNumberIsTaken) {
  for (const uint32_t rows : {1u, 2u, 64u}) {
    const LaneCount choice = ChooseLanes({.lanes_max = 2, .rows_max = 64}, Costs(),
                                         {.rows = rows, .context_tokens = 9}, 2);
    EXPECT_EQ(choice.lanes, 2u);
    EXPECT_EQ(choice.why, "2, as configured");
  }
}

TEST(LaneCountTest, WhyThereIsOneMayBeSaid) {
  const LaneCountOptions options{.lanes_max = 1, .fixed_why = "for a reason"};
  EXPECT_EQ(ChooseLanes(options, Costs(), {.rows = 9}, 1).why, "1, for a reason");
}

TEST(LaneCountTest, UnmeasuredRowsDecide) {
  const LaneCountOptions options{.lanes_max = 3, .automatic = true, .rows_max = 16};
  EXPECT_EQ(ChooseLanes(options, {}, {.rows = 2}, 1).lanes, 1u);
  EXPECT_EQ(ChooseLanes(options, {}, {.rows = 3}, 1).lanes, 3u);
  EXPECT_THAT(ChooseLanes(options, {}, {.rows = 3}, 1).why,
              AllOf(HasSubstr("3 of 3 lanes: 3 rows"), HasSubstr("not measured")));
}

TEST(LaneCountTest, ShortContextsAreFasterInOneLane) {
  const LaneCountOptions options{.lanes_max = 2, .automatic = true, .rows_max = 64};
  const LaneCount choice = ChooseLanes(options, Costs(), {.rows = 4, .context_tokens = 40}, 2);
  EXPECT_EQ(choice.lanes, 1u);
  EXPECT_THAT(choice.why, HasSubstr("1 of 2 lanes: 4 rows, a layer takes 1.09 ms, with 2"));
}

TEST(LaneCountTest, LongContextsAreFasterInTwo) {
  // Attention 2 ms, slices 1.16 ms: 3.2 ms one after the other, 2.3 ms at once.
  const cost::LaneWork work{.rows = 16, .context_tokens = 2000};
  EXPECT_LT(cost::LayerSeconds(Costs(), work, 2), cost::LayerSeconds(Costs(), work, 1));
  EXPECT_EQ(
      ChooseLanes({.lanes_max = 2, .automatic = true, .rows_max = 64}, Costs(), work, 1).lanes, 2u);
}

TEST(LaneCountTest, AutomaticTakesTheBestOfAll) {
  cost::LaneCosts costs = Costs();
  costs.replicas = 2;
  const LaneCountOptions options{.lanes_max = 8, .automatic = true, .rows_max = 64};
  for (const uint64_t context : {10u, 500u, 2000u, 20000u}) {
    const cost::LaneWork work{.rows = 32, .context_tokens = context};
    const LaneCount choice = ChooseLanes(options, costs, work, 1);
    for (uint32_t lanes = 1; lanes <= 8; ++lanes) {
      EXPECT_LE(cost::LayerSeconds(costs, work, choice.lanes),
                cost::LayerSeconds(costs, work, lanes) / 0.95)
          << lanes;
    }
  }
}

TEST(LaneCountTest, ASmallGainChangesNothing) {
  const LaneCountOptions options{.lanes_max = 2, .automatic = true, .rows_max = 64};
  cost::LaneCosts costs = Costs();
  costs.slice_per_row = 0;
  costs.attention_fixed = 0;
  // 1 + 1.02 ms in one lane, 2 ms with two.
  const cost::LaneWork work{.rows = 16, .context_tokens = 1020};
  EXPECT_LT(cost::LayerSeconds(costs, work, 2), cost::LayerSeconds(costs, work, 1));
  EXPECT_EQ(ChooseLanes(options, costs, work, 1).lanes, 1u);
  EXPECT_EQ(ChooseLanes(options, costs, work, 2).lanes, 2u);
}

TEST(LaneCountTest, NeverTooFewForTheRows) {
  const LaneCountOptions options{.lanes_max = 4, .automatic = true, .rows_max = 8};
  EXPECT_EQ(ChooseLanes(options, Costs(), {.rows = 17, .context_tokens = 17}, 1).lanes, 3u);
  EXPECT_EQ(ChooseLanes({.lanes_max = 4, .rows_max = 8}, Costs(), {.rows = 17}, 1).lanes, 4u);
}

TEST(LaneCountTest, NeverMoreThanRows) {
  const LaneCountOptions options{.lanes_max = 8, .automatic = true, .rows_max = 8};
  cost::LaneCosts costs = Costs();
  costs.replicas = 7;
  EXPECT_LE(ChooseLanes(options, costs, {.rows = 2, .context_tokens = 20000}, 8).lanes, 2u);
}

// Two equal stages are like a replica that is twice as fast, as soon as there are lanes for both.
TEST(LaneCountTest, StagesWorkOnOtherLanesAtOnce) {
  const cost::LaneCosts whole{.slice_fixed = 2, .attention_fixed = 1, .measured = true};
  cost::LaneCosts staged = whole;
  staged.busiest_share = 0.5;
  const cost::LaneWork work{.rows = 8};
  EXPECT_DOUBLE_EQ(cost::LayerSeconds(staged, work, 1), cost::LayerSeconds(whole, work, 1));
  EXPECT_DOUBLE_EQ(cost::LayerSeconds(whole, work, 4), 8);
  EXPECT_DOUBLE_EQ(cost::LayerSeconds(staged, work, 4), 4);
}

}  // namespace
}  // namespace lamina::core
