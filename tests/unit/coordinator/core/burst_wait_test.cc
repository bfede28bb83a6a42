// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/burst_wait.h"

#include <gtest/gtest.h>

namespace lamina::core {
namespace {

SchedulerOptions Options(uint32_t step_tokens) {
  return {.lanes = 2, .plan_ahead = 2, .step_tokens_max = step_tokens};
}

constexpr Nanos kStart = Seconds(5);

TEST(BurstWaitTest, NothingIsWaitedForBeforeRatesAreKnown) {
  BurstWait wait(Options(256));
  EXPECT_LE(wait.PlanAt(1000), kStart);
  wait.Came(64, kStart);
  EXPECT_LE(wait.PlanAt(0), kStart);
}

TEST(BurstWaitTest, AShortPromptWaitsForAHundredthOfItsTime) {
  BurstWait wait(Options(256));
  wait.Came(20, kStart);  // 20 ms.
  EXPECT_EQ(wait.PlanAt(1000), kStart + Micros(200));
}

TEST(BurstWaitTest, ALongPromptWaitsUntilNothingMoreComes) {
  BurstWait wait(Options(256));
  wait.Came(500, kStart);  // Half a second.
  EXPECT_EQ(wait.PlanAt(1000), kStart + Millis(2));
  wait.Came(1, kStart + Micros(400));
  EXPECT_EQ(wait.PlanAt(1000), kStart + Micros(2400));
}

TEST(BurstWaitTest, EachPromptOfABurstAddsToWhatIsWaitedFor) {
  BurstWait wait(Options(256));
  for (int i = 0; i < 5; ++i) {
    wait.Came(20, kStart + Micros(150 * i));
  }
  EXPECT_EQ(wait.PlanAt(1000), kStart + Micros(1000));  // All together take 100 ms.
}

TEST(BurstWaitTest, OnesThatKeepComingAreNotWaitedForWithoutEnd) {
  BurstWait wait(Options(1 << 20));
  for (int i = 0; i < 1000; ++i) {
    wait.Came(10, kStart + Micros(100 * i));  // Each takes 10 us.
  }
  EXPECT_EQ(wait.PlanAt(1e6), kStart + Micros(100));
}

TEST(BurstWaitTest, FullStepsWaitForNothing) {
  BurstWait wait(Options(256));
  wait.Came(1000, kStart);
  EXPECT_GT(wait.PlanAt(1000), kStart);
  wait.Came(24, kStart);
  EXPECT_LE(wait.PlanAt(1000), kStart);
}

TEST(BurstWaitTest, WhatComesBehindAStepIsAnotherBurst) {
  BurstWait wait(Options(256));
  wait.Came(500, kStart);
  wait.Planned();
  EXPECT_LE(wait.PlanAt(1000), kStart);
  wait.Came(20, kStart + Seconds(1));
  EXPECT_EQ(wait.PlanAt(1000), kStart + Seconds(1) + Micros(200));
}

}  // namespace
}  // namespace lamina::core
