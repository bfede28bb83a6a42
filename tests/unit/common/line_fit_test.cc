// SPDX-License-Identifier: Apache-2.0
#include "common/line_fit.h"

#include <gtest/gtest.h>

namespace lamina {
namespace {

void AddTimes(LineFit& fit, int times, double size, double value) {
  for (int i = 0; i < times; ++i) {
    fit.Add(size, value);
  }
}

double At(const LineFit::Values& line, double size) { return line.fixed + line.slope * size; }

// A hundred times as many samples as a bucket keeps its weight.
constexpr int kLong = 102400;

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

// Slices of 1 ms and 0.01 ms a row. There were 4 rows at start, when other programs had the cores,
// and 16 ever since.
TEST(LineFitTest, ABadMomentOfASizeThatDoesNotReturnDoesNotLiftTheLine) {
  for (const int times : {1, 32}) {
    LineFit fit;
    AddTimes(fit, times, 4, 10.4);
    AddTimes(fit, kLong, 16, 1.16);
    EXPECT_GE(fit.Line(false).fixed, 1.16);
    EXPECT_LT(At(fit.Line(false), 16), 1.26) << times;
    EXPECT_DOUBLE_EQ(fit.Line(false).slope, 0);
  }
}

TEST(LineFitTest, AnotherSizeCorrectsABadMomentOfLongAgo) {
  LineFit fit;
  fit.Add(4, 10.4);
  AddTimes(fit, kLong, 16, 1.16);
  AddTimes(fit, 32, 8, 1.08);
  EXPECT_NEAR(fit.Line(false).slope, 0.01, 0.001);
  EXPECT_NEAR(fit.Line(false).fixed, 1, 0.02);
}

TEST(LineFitTest, AMeanOfLongAgoGivesWayWhenItsSizeReturns) {
  LineFit fit;
  AddTimes(fit, 32, 4, 10.4);
  AddTimes(fit, kLong, 16, 1.16);
  AddTimes(fit, 8, 4, 1.04);
  EXPECT_LT(At(fit.Line(false), 16), 1.26);
  AddTimes(fit, 56, 4, 1.04);
  EXPECT_NEAR(At(fit.Line(false), 16), 1.16, 1e-6);
  EXPECT_NEAR(fit.Line(false).slope, 0.01, 0.004);
}

// Slices of 0.1 ms and 1 ms a row: were all 16.1 ms fixed, two lanes would seem
// to take twice that.
TEST(LineFitTest, AGoodLineStaysWithoutTheOtherSize) {
  LineFit fit;
  fit.Add(4, 4.1);
  AddTimes(fit, kLong, 16, 16.1);
  EXPECT_NEAR(fit.Line(false).fixed, 0.1, 1e-6);
  EXPECT_NEAR(fit.Line(false).slope, 1, 1e-6);
}

// Attention of 0.5 ms and 1 us a token, five times that while contexts were short.
TEST(LineFitTest, AProportionalLineForgetsABadMomentInTime) {
  LineFit fit;
  AddTimes(fit, 32, 4000, 22.5);
  AddTimes(fit, 10 * kLong, 16000, 16.5);
  EXPECT_NEAR(At(fit.Line(true), 16000), 16.5, 0.02);
  EXPECT_NEAR(At(fit.Line(true), 8000), 8.5, 0.7);
}

// It comes to what it says of one size by small steps, right where it is used.
TEST(LineFitTest, AProportionalLineDoesNotJumpAsSizesGrowOld) {
  LineFit fit;
  AddTimes(fit, 32, 4000, 4.5);
  AddTimes(fit, 32, 16000, 16.5);
  LineFit::Values before = fit.Line(true);
  for (int i = 0; i < kLong; ++i) {
    fit.Add(16000, 16.5);
    const LineFit::Values now = fit.Line(true);
    ASSERT_NEAR(now.fixed, before.fixed, 0.003);
    ASSERT_NEAR(At(now, 16000), 16.5, 0.02);
    ASSERT_NEAR(At(now, 8000), 8.5, 0.2);
    before = now;
  }
  EXPECT_LT(before.fixed, 0.25);
}

}  // namespace
}  // namespace lamina
