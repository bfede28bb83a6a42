// SPDX-License-Identifier: Apache-2.0
#include "common/idle_naps.h"

#include <gtest/gtest.h>

namespace lamina {
namespace {

TEST(IdleNapsTest, NapsAreLongWhenNothingHasComeForASecond) {
  IdleNaps naps;
  EXPECT_EQ(naps.Next(Seconds(5)), IdleNaps::kShort) << "it begins as if something had come";
  EXPECT_EQ(naps.Next(Seconds(6) - 1), IdleNaps::kShort);
  EXPECT_EQ(naps.Next(Seconds(6)), IdleNaps::kLong);
  EXPECT_EQ(naps.Next(Seconds(60)), IdleNaps::kLong);
}

TEST(IdleNapsTest, AMessageMakesThemShortAgain) {
  IdleNaps naps;
  naps.Next(Seconds(5));
  EXPECT_EQ(naps.Next(Seconds(60)), IdleNaps::kLong);
  naps.Came();
  EXPECT_EQ(naps.Next(Seconds(61)), IdleNaps::kShort);
  EXPECT_EQ(naps.Next(Seconds(62)), IdleNaps::kLong);
}

}  // namespace
}  // namespace lamina
