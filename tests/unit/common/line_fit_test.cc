// SPDX-License-Identifier: Apache-2.0
#include "common/line_fit.h"

#include <gtest/gtest.h>

namespace lamina {
namespace {

TEST(LineFitTest, FindsTheLine) {
  LineFit fit;
  EXPECT_TRUE(fit.empty());
  for (int round = 0; round < 10; ++round) {
    for (const double size : {1.0, 4.0, 16.0, 64.0}) {
      fit.Add(size, 3 + 0.5 * size);
    }
  }
  EXPECT_FALSE(fit.empty());
  EXPECT_NEAR(fit.Line(false).fixed, 3, 1e-9);
  EXPECT_NEAR(fit.Line(false).slope, 0.5, 1e-9);
}

TEST(LineFitTest, OneSizeIsFixedOrProportional) {
  LineFit fit;
  fit.Add(8, 4);
  EXPECT_DOUBLE_EQ(fit.Line(false).fixed, 4);
  EXPECT_DOUBLE_EQ(fit.Line(false).slope, 0);
  EXPECT_DOUBLE_EQ(fit.Line(true).fixed, 0);
  EXPECT_DOUBLE_EQ(fit.Line(true).slope, 0.5);
}

TEST(LineFitTest, NothingIsNegative) {
  LineFit falling;
  falling.Add(1, 5);
  falling.Add(100, 1);
  EXPECT_DOUBLE_EQ(falling.Line(false).slope, 0);
  EXPECT_DOUBLE_EQ(falling.Line(false).fixed, 3);
  LineFit steep;
  steep.Add(10, 1);
  steep.Add(20, 100);
  EXPECT_DOUBLE_EQ(steep.Line(false).fixed, 0);
  EXPECT_GT(steep.Line(false).slope, 0);
}

TEST(LineFitTest, OldValuesAreForgottenAndOtherSizesAreNot) {
  LineFit fit;
  fit.Add(100, 103);
  for (int i = 0; i < 10; ++i) {
    fit.Add(1, 50);
  }
  for (int i = 0; i < 1000; ++i) {
    fit.Add(1, 4);
  }
  EXPECT_NEAR(fit.Line(false).fixed, 3, 1e-6);
  EXPECT_NEAR(fit.Line(false).slope, 1, 1e-6);
}

}  // namespace
}  // namespace lamina
