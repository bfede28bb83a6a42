// SPDX-License-Identifier: Apache-2.0
#include "common/remaining_time.h"

#include <gtest/gtest.h>

#include <limits>

namespace lamina {
namespace {

TEST(RemainingTimeTest, IsThatOfThePaceSoFar) {
  EXPECT_EQ(RemainingTime(1, 4, 2), "6 s left");
  EXPECT_EQ(RemainingTime(0.3, 1, 1), "3 s left") << "rounded up";
  EXPECT_EQ(RemainingTime(1, 2, 121), "3 min left");
  EXPECT_EQ(RemainingTime(1, 11, 900), "2.5 h left");
}

TEST(RemainingTimeTest, IsNotGuessed) {
  EXPECT_EQ(RemainingTime(0, 4, 2), "");
  EXPECT_EQ(RemainingTime(1, 4, 0.1), "");
  EXPECT_EQ(RemainingTime(4, 4, 2), "");
  EXPECT_EQ(RemainingTime(0, 0, 2), "");
  EXPECT_EQ(RemainingTime(1, 2, std::numeric_limits<double>::quiet_NaN()), "");
}

}  // namespace
}  // namespace lamina
