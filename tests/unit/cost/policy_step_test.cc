// SPDX-License-Identifier: Apache-2.0
#include "cost/policy_step.h"

#include <gtest/gtest.h>

#include "tests/unit/cost/two_cores.h"

namespace lamina::cost {
namespace {

using test_support::kModel;
using test_support::kPools;
using test_support::TwoCores;

TEST(PolicyStepTest, TimesAreReadBetweenTheSizesMeasuredAndBeyondThem) {
  const plan::PolicyTimes times = TwoCores();
  for (const double rows : {1.0, 3.0, 4.0, 10.0, 64.0, 100.0}) {
    EXPECT_NEAR(TimesOf(times.pools, rows).slice_seconds, 1e-4 * (2 + rows), 1e-9) << rows;
    EXPECT_NEAR(TimesOf(times.pools, rows).tail_seconds, 8e-4 * (2 + rows), 1e-8) << rows;
  }
  EXPECT_NEAR(TimesOf({{.rows = 4, .slice_seconds = 2}}, 9).slice_seconds, 2, 1e-9);
  EXPECT_NEAR(TimesOf(times.pools, 0.5).slice_seconds, 3e-4, 1e-9);
}

TEST(PolicyStepTest, ALocalStepIsDenseLayersAndThenAttention) {
  const PolicyStep step = LocalStep(TwoCores(), kModel, {.rows = 16, .context = 1000});
  EXPECT_NEAR(step.dense, 20e-4 * (29 + 8), 1e-9);
  EXPECT_NEAR(step.attention, 16 * 1000 * 23040 / 15e9, 1e-9);
  EXPECT_NEAR(step.seconds, step.dense + step.attention, 1e-12);
}

TEST(PolicyStepTest, MemoryNodesHideWhatIsShorterAndTwoLanesReadTheWeightsTwice) {
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

TEST(PolicyStepTest, ARowRunsInOneLaneUnlessTheFileSaysOtherwise) {
  EXPECT_EQ(PoolsStep(TwoCores(), kModel, kPools, {.rows = 1, .context = 100}).lanes, 1u);
  EXPECT_EQ(
      PoolsStep(TwoCores(), kModel, {.attention = 8e9, .lanes_max = 2}, {.rows = 1, .context = 100})
          .lanes,
      2u);
}

TEST(PolicyStepTest, ReplicasShareTheRowsOfALocalStep) {
  PolicyModel two = kModel;
  two.replicas = 2;
  EXPECT_DOUBLE_EQ(LocalStep(TwoCores(), two, {.rows = 16, .context = 1000}).seconds,
                   LocalStep(TwoCores(), kModel, {.rows = 8, .context = 1000}).seconds);
  EXPECT_DOUBLE_EQ(LocalStep(TwoCores(), two, {.rows = 1, .context = 1000}).seconds,
                   LocalStep(TwoCores(), kModel, {.rows = 1, .context = 1000}).seconds)
      << "a row is on one of them";
}

// As many lanes as replicas run side by side; one more waits its turn.
TEST(PolicyStepTest, LanesRotateOverReplicas) {
  const auto dense = [&](uint32_t lanes, uint32_t replicas) {
    PolicyModel model = kModel;
    model.replicas = replicas;
    return PoolsStep(TwoCores(), model, {.attention = 8e9, .lanes_max = lanes},
                     {.rows = 16, .context = 1000})
        .dense;
  };
  EXPECT_DOUBLE_EQ(dense(2, 2), dense(2, 1) / 2);
  EXPECT_DOUBLE_EQ(dense(3, 2), dense(3, 1) / 2);
  EXPECT_DOUBLE_EQ(dense(2, 3), dense(2, 1) / 2);
  EXPECT_DOUBLE_EQ(dense(1, 2), dense(1, 1));
}

TEST(PolicyStepTest, TheSlowestOfSeveralNodesCountsInEachFigure) {
  plan::PolicyTimes other = TwoCores();
  for (plan::SliceTimes& size : other.local) {
    size.slice_seconds *= 2;
    size.tail_seconds /= 2;
  }
  other.attention_local /= 4;
  other.read_bandwidth = 7e9;
  const plan::PolicyTimes slowest = SlowestOf({TwoCores(), other});
  const plan::PolicyTimes one = TwoCores();
  ASSERT_EQ(slowest.local.size(), one.local.size());
  for (size_t i = 0; i < one.local.size(); ++i) {
    EXPECT_DOUBLE_EQ(slowest.local[i].slice_seconds, 2 * one.local[i].slice_seconds);
    EXPECT_DOUBLE_EQ(slowest.local[i].tail_seconds, one.local[i].tail_seconds);
    EXPECT_DOUBLE_EQ(slowest.pools[i].slice_seconds, one.pools[i].slice_seconds);
  }
  EXPECT_EQ(slowest.attention_local, one.attention_local / 4);
  EXPECT_EQ(slowest.read_bandwidth, 7e9);
  EXPECT_DOUBLE_EQ(SlowestOf({other}).local[0].slice_seconds, other.local[0].slice_seconds);
}

}  // namespace
}  // namespace lamina::cost
