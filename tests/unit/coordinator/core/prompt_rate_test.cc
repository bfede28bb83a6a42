// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/prompt_rate.h"

#include <gtest/gtest.h>

namespace lamina::core {
namespace {

plan::StepPlan Step(uint32_t lane, uint32_t tokens) {
  return {.lane = lane, .chunks = {{.tokens = tokens / 2}, {.tokens = tokens - tokens / 2}}};
}

TEST(PromptRateTest, NothingIsKnownAtFirst) {
  PromptRate rate;
  rate.Reset(1);
  EXPECT_EQ(rate.TokensPerSecond(), 0);
}

TEST(PromptRateTest, AStepTakesFromTheOneBeforeToItsEnd) {
  PromptRate rate;
  rate.Reset(2);
  rate.Planned(Step(1, 100), Seconds(0));
  rate.Planned(Step(1, 100), Seconds(0));  // Runs behind the first.
  rate.Done(1, Seconds(2));
  EXPECT_DOUBLE_EQ(rate.TokensPerSecond(), 50);
  rate.Done(1, Seconds(4));
  EXPECT_DOUBLE_EQ(rate.TokensPerSecond(), 50);
}

TEST(PromptRateTest, StepsOfRowsSayNothing) {
  PromptRate rate;
  rate.Reset(1);
  rate.Planned(Step(0, 0), Seconds(0));
  rate.Planned(Step(0, 2), Seconds(0));
  rate.Done(0, Seconds(1));
  rate.Done(0, Seconds(2));
  EXPECT_EQ(rate.TokensPerSecond(), 0);
}

TEST(PromptRateTest, WhatIsNewCountsMore) {
  PromptRate rate;
  rate.Reset(1);
  Nanos now = 0;
  for (int i = 0; i < 100; ++i) {
    rate.Planned(Step(0, 100), now);
    rate.Done(0, now += Seconds(i < 50 ? 1 : 2));
  }
  EXPECT_NEAR(rate.TokensPerSecond(), 50, 1);
}

// Plans of an epoch that ended are never done.
TEST(PromptRateTest, AnotherEpochBeginsWithoutSteps) {
  PromptRate rate;
  rate.Reset(1);
  rate.Planned(Step(0, 1000), Seconds(0));
  rate.Reset(1);
  rate.Planned(Step(0, 100), Seconds(10));
  rate.Done(0, Seconds(11));
  EXPECT_DOUBLE_EQ(rate.TokensPerSecond(), 100);
}

}  // namespace
}  // namespace lamina::core
