// SPDX-License-Identifier: Apache-2.0
#include "cost/fitted_line.h"

#include "cost/time_curve.h"
#include "gtest/gtest.h"

namespace lamina::cost {
namespace {

TEST(FitLineTest, FindsTheLineOfPointsOnOne) {
  const FittedLine line = FitLine({{1, 3}, {2, 5}, {100, 201}});
  EXPECT_NEAR(line.fixed, 1, 1e-9);
  EXPECT_NEAR(line.slope, 2, 1e-9);
  EXPECT_NEAR(line.r2, 1, 1e-12);
}

TEST(FitLineTest, SmallSizesCountAsMuchAsLargeOnes) {
  // Off by a tenth each, in opposite directions: the line passes between them by shares.
  const FittedLine line = FitLine({{1, 1.1}, {10, 9}, {100, 100}});
  EXPECT_NEAR((line.fixed + line.slope) / 1.1, 1, 0.1);
  EXPECT_LT(line.r2, 1);
}

TEST(FitLineTest, NeitherPartIsNegative) {
  const FittedLine falling = FitLine({{1, 10}, {10, 5}});
  EXPECT_EQ(falling.slope, 0);
  EXPECT_GT(falling.fixed, 0);
  const FittedLine steep = FitLine({{10, 1}, {20, 10}});
  EXPECT_EQ(steep.fixed, 0);
  const FittedLine one = FitLine({{10, 5}});
  EXPECT_EQ(one.fixed, 0);
  EXPECT_DOUBLE_EQ(one.slope, 0.5);
}

TEST(FitPlaneTest, FindsThePlaneOfPointsOnOne) {
  const auto at = [](double rows, double size) {
    return RowsPoint{rows, size, 3e-6 + 2e-6 * rows + 1e-9 * size};
  };
  const FittedPlane plane =
      FitPlane({at(1, 100), at(1, 5000), at(4, 2000), at(16, 4000), at(64, 9000)});
  EXPECT_NEAR(plane.fixed, 3e-6, 1e-12);
  EXPECT_NEAR(plane.row, 2e-6, 1e-12);
  EXPECT_NEAR(plane.slope, 1e-9, 1e-15);
  EXPECT_NEAR(plane.r2, 1, 1e-9);
}

TEST(FitPlaneTest, RowsThatGrowWithSizesGiveALine) {
  const FittedPlane plane = FitPlane({{1, 1000, 0.00011}, {9, 9000, 0.00019}});
  EXPECT_NEAR(plane.fixed, 0.0001, 1e-9);
  EXPECT_EQ(plane.row, 0);
  EXPECT_NEAR(plane.slope, 1e-8, 1e-13);
}

TEST(FitPlaneTest, NoTermIsNegative) {
  // Fewer rows take longer, which no row's own time explains.
  const FittedPlane plane = FitPlane({{8, 100, 1}, {1, 100, 2}, {4, 200, 3}, {2, 400, 7}});
  EXPECT_GE(plane.fixed, 0);
  EXPECT_GE(plane.row, 0);
  EXPECT_GT(plane.slope, 0);
  const FittedPlane one = FitPlane({{1, 10, 5}});
  EXPECT_EQ(one.fixed, 0);
  EXPECT_DOUBLE_EQ(one.slope, 0.5);
}

TEST(TimeCurveTest, IsStraightBetweenPointsAndBeyondThem) {
  const TimeCurve curve({{16, 12}, {1, 3}, {4, 4}, {16, 14}});  // 13 at 16 in the mean.
  EXPECT_DOUBLE_EQ(curve.At(0.5), 3);
  EXPECT_DOUBLE_EQ(curve.At(1), 3);
  EXPECT_DOUBLE_EQ(curve.At(2.5), 3.5);
  EXPECT_DOUBLE_EQ(curve.At(10), 8.5);
  EXPECT_DOUBLE_EQ(curve.At(16), 13);
  EXPECT_DOUBLE_EQ(curve.At(20), 16);
}

TEST(TimeCurveTest, BoundsWhatAnySizeTakes) {
  const TimeCurve growing({{1, 3}, {4, 4}, {16, 13}});
  EXPECT_DOUBLE_EQ(growing.Least(), 3);
  EXPECT_DOUBLE_EQ(growing.LeastOfUnit(), 0.75);  // Far beyond the last point.
  const TimeCurve falling({{1, 5}, {2, 4}});
  EXPECT_DOUBLE_EQ(falling.Least(), 4);
  EXPECT_DOUBLE_EQ(falling.LeastOfUnit(), 0);
  EXPECT_DOUBLE_EQ(TimeCurve({{2, 4}}).LeastOfUnit(), 2);
}

TEST(TimeCurveTest, NeverFallsBeyondItsLastPoint) {
  EXPECT_DOUBLE_EQ(TimeCurve({{1, 5}, {2, 4}}).At(9), 4);
  EXPECT_DOUBLE_EQ(TimeCurve({{2, 4}}).At(3), 6);
  EXPECT_TRUE(TimeCurve().empty());
}

}  // namespace
}  // namespace lamina::cost
