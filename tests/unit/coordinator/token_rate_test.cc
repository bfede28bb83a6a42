// SPDX-License-Identifier: Apache-2.0
#include "coordinator/token_rate.h"

#include <gtest/gtest.h>

namespace lamina::coordinator {
namespace {

TEST(TokenRateTest, NothingCountedIsNoRate) {
  TokenRate rate;
  EXPECT_EQ(rate.PerSecond(Seconds(5), 100), 0);
}

TEST(TokenRateTest, TheFirstSecondCountsAsAWholeOne) {
  TokenRate rate;
  rate.Count(Seconds(5), 0);
  EXPECT_DOUBLE_EQ(rate.PerSecond(Seconds(5) + Millis(100), 50), 50);
  EXPECT_DOUBLE_EQ(rate.PerSecond(Seconds(7), 50), 25);
}

TEST(TokenRateTest, WhatIsOlderThanTheWindowIsForgotten) {
  TokenRate rate;
  for (int second = 0; second <= 20; ++second) {
    rate.Count(Seconds(second), static_cast<uint64_t>(second) * 10);
  }
  EXPECT_DOUBLE_EQ(rate.PerSecond(Seconds(20), 200), 10);
  EXPECT_DOUBLE_EQ(rate.PerSecond(Seconds(40), 200), 0) << "nothing since";
}

// Two steps within a tenth of a second are one entry.
TEST(TokenRateTest, TheLastTokensAreForgottenToo) {
  TokenRate rate;
  rate.Count(Seconds(5), 100);
  rate.Count(Seconds(5) + Millis(50), 160);
  EXPECT_DOUBLE_EQ(rate.PerSecond(Seconds(11), 160), 10);
  EXPECT_DOUBLE_EQ(rate.PerSecond(Seconds(20), 160), 0);
}

}  // namespace
}  // namespace lamina::coordinator
