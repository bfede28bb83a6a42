// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/policy_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace lamina::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A host of two cores: with few rows, whose time is that of reading weights, both compute little
// faster than one; they attend at 15 GB/s where one has 8.
plan::PolicyTimes TwoCores() {
  plan::PolicyTimes times{.attention_local = 15e9, .attention_shared = 8e9, .read_bandwidth = 30e9};
  for (const auto& [rows, local] :
       {std::pair(1u, 2.5e-4), {4u, 5e-4}, {16u, 20e-4}, {64u, 40e-4}}) {
    const double slice = 1e-4 * (2 + rows);
    times.pools.push_back({rows, slice, 8 * slice});
    times.local.push_back({rows, local, 8 * local});
  }
  return times;
}

constexpr PolicyModel kModel = {.layers = 30, .kv_bytes_per_token = 23040};
constexpr PolicyPools kPools = {.attention = 8e9, .lanes_max = 2, .lanes_auto = true};

TEST(PolicyChoiceTest, TimesAreReadBetweenTheSizesMeasuredAndBeyondThem) {
  const plan::PolicyTimes times = TwoCores();
  for (const double rows : {1.0, 3.0, 4.0, 10.0, 64.0, 100.0}) {
    EXPECT_NEAR(TimesOf(times.pools, rows).slice_seconds, 1e-4 * (2 + rows), 1e-9) << rows;
    EXPECT_NEAR(TimesOf(times.pools, rows).tail_seconds, 8e-4 * (2 + rows), 1e-8) << rows;
  }
  EXPECT_NEAR(TimesOf({{.rows = 4, .slice_seconds = 2}}, 9).slice_seconds, 2, 1e-9);
  EXPECT_NEAR(TimesOf(times.pools, 0.5).slice_seconds, 3e-4, 1e-9);
}

TEST(PolicyChoiceTest, ALocalStepIsDenseLayersAndThenAttention) {
  const PolicyStep step = LocalStep(TwoCores(), kModel, {.rows = 16, .context = 1000});
  EXPECT_NEAR(step.dense, 20e-4 * (29 + 8), 1e-9);
  EXPECT_NEAR(step.attention, 16 * 1000 * 23040 / 15e9, 1e-9);
  EXPECT_NEAR(step.seconds, step.dense + step.attention, 1e-12);
}

TEST(PolicyChoiceTest, MemoryNodesHideWhatIsShorterAndTwoLanesReadTheWeightsTwice) {
  const PolicyStep step = PoolsStep(TwoCores(), kModel, kPools, {.rows = 16, .context = 1000});
  EXPECT_EQ(step.lanes, 2u);
  EXPECT_NEAR(step.dense, 2 * 10e-4 * (29 + 8), 1e-9);
  // Longer than attention, most of which is hidden.
  EXPECT_NEAR(step.seconds, step.dense + 0.2 * step.attention, 1e-12);
  EXPECT_LT(step.attention, step.dense);

  const PolicyStep one = PoolsStep(TwoCores(), kModel, {.attention = 8e9, .lanes_max = 1},
                                   {.rows = 16, .context = 1000});
  EXPECT_NEAR(one.dense, 18e-4 * (29 + 8), 1e-9);
  EXPECT_NEAR(one.seconds, one.dense + one.attention, 1e-12);
}

TEST(PolicyChoiceTest, ARowRunsInOneLaneUnlessTheFileSaysOtherwise) {
  EXPECT_EQ(PoolsStep(TwoCores(), kModel, kPools, {.rows = 1, .context = 100}).lanes, 1u);
  EXPECT_EQ(
      PoolsStep(TwoCores(), kModel, {.attention = 8e9, .lanes_max = 2}, {.rows = 1, .context = 100})
          .lanes,
      2u);
}

struct Point {
  double rows;
  double context;
  bool local;
};

class PolicyChoicePointTest : public ::testing::TestWithParam<Point> {};

// Much context beside few rows keeps both cores busy on two pools; many rows, or so much context
// that the memory nodes' core bounds the step, are faster where all cores do what there is to do.
TEST_P(PolicyChoicePointTest, IsTheShorterStepAndSaysSo) {
  const auto& [rows, context, local] = GetParam();
  const PolicyChoice choice =
      ChoosePolicy(TwoCores(), kModel, kPools, {.rows = rows, .context = context});
  EXPECT_EQ(choice.local, local) << choice.why;
  EXPECT_EQ(choice.local, choice.local_seconds < choice.pools_seconds);
  EXPECT_THAT(choice.why, HasSubstr(local ? ", on memory nodes " : ", with local "));
}

INSTANTIATE_TEST_SUITE_P(Points, PolicyChoicePointTest,
                         ::testing::Values(Point{16, 1024, false}, Point{64, 128, true},
                                           Point{64, 512, true}, Point{1, 128, true},
                                           Point{16, 4096, true}));

TEST(PolicyChoiceTest, SaysTheFiguresOfBoth) {
  const PolicyChoice choice =
      ChoosePolicy(TwoCores(), kModel, kPools, {.rows = 16, .context = 1000});
  EXPECT_EQ(choice.why,
            "16 rows at 1000 tokens: a step takes 83.7 ms (dense 74.0, attention 48.5, 2 lanes), "
            "with local 98.6 ms (dense 74.0, attention 24.6)");
}

TEST(PolicyChoiceTest, WithoutMemoryNodesItIsLocal) {
  PolicyPools none = kPools;
  none.attention = 0;
  const PolicyChoice choice =
      ChoosePolicy(TwoCores(), kModel, none, {.rows = 1, .context = 100}, CurrentPolicy::kPools);
  EXPECT_TRUE(choice.local);
  EXPECT_EQ(choice.pools_seconds, 0);
  EXPECT_THAT(choice.why, AllOf(HasSubstr("1 row at 100 tokens"),
                                HasSubstr("no memory node is there"), Not(HasSubstr("lane"))));
}

// Around the load where both are equally fast, whichever runs stays.
TEST(PolicyChoiceTest, TheCurrentPolicyStaysUntilTheOtherIsClearlyFaster) {
  plan::PolicyTimes times = TwoCores();
  const PolicyLoad load = {.rows = 64, .context = 512};
  const double remote = PoolsStep(times, kModel, kPools, load).seconds;
  for (const double factor : {0.85, 0.95, 1.05, 1.2}) {
    // Attention takes what makes local's step so much longer.
    const double dense = LocalStep(times, kModel, load).dense;
    times.attention_local =
        load.rows * load.context * kModel.kv_bytes_per_token / (remote * factor - dense);
    const auto local = [&](CurrentPolicy current) {
      return ChoosePolicy(times, kModel, kPools, load, current).local;
    };
    EXPECT_EQ(local(CurrentPolicy::kNone), factor < 1) << factor;
    EXPECT_EQ(local(CurrentPolicy::kLocal), factor < 1.1) << factor;
    EXPECT_EQ(local(CurrentPolicy::kPools), factor < 0.9) << factor;
  }
}

TEST(PolicyLoadMeterTest, IsTheMeanOverTheTimeInWhichRowsRan) {
  PolicyLoadMeter meter;
  meter.Add(1, 4, 400);
  meter.Add(100, 0, 0);
  EXPECT_EQ(meter.seconds(), 1);
  EXPECT_EQ(meter.load().rows, 4);
  EXPECT_EQ(meter.load().context, 100);
  meter.Add(1, 8, 1600);
  EXPECT_EQ(meter.seconds(), 2);
  EXPECT_NEAR(meter.load().rows, 6, 1e-9);
  EXPECT_NEAR(meter.load().context, 1000.0 / 6, 1e-9);
}

TEST(PolicyLoadMeterTest, Forgets) {
  PolicyLoadMeter meter;
  for (int i = 0; i < 10000; ++i) {
    meter.Add(0.1, 1, 100);
  }
  for (int i = 0; i < 2000; ++i) {
    meter.Add(0.1, 64, 64 * 512);
  }
  EXPECT_GT(meter.load().rows, 50);
  EXPECT_NEAR(meter.load().context, 512, 20);
}

}  // namespace
}  // namespace lamina::core
