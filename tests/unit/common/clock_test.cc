// SPDX-License-Identifier: Apache-2.0
#include "common/clock.h"

#include <gtest/gtest.h>

namespace lamina {
namespace {

TEST(ClockTest, UnitsAreNanoseconds) {
  EXPECT_EQ(Micros(3), 3'000);
  EXPECT_EQ(Millis(3), 3'000'000);
  EXPECT_EQ(Seconds(3), 3'000'000'000);
  EXPECT_DOUBLE_EQ(ToSeconds(Millis(1500)), 1.5);
}

TEST(ClockTest, RealClockNeverGoesBack) {
  Nanos last = RealClock().Now();
  for (int i = 0; i < 10'000; ++i) {
    const Nanos now = RealClock().Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace lamina
