// SPDX-License-Identifier: Apache-2.0
//
// Errors are in units of the last place of the exact value, against the C library in double.
#include "kernels/canonical_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace lamina::kernels::canonical {
namespace {

double UlpError(float got, double want) {
  const float nearest = static_cast<float>(want);
  const double ulp =
      static_cast<double>(std::nextafter(std::fabs(nearest), INFINITY)) - std::fabs(nearest);
  return std::fabs(static_cast<double>(got) - want) / ulp;
}

TEST(CanonicalMathTest, ExpIsWithinOneUlp) {
  double worst = 0;
  for (int i = 0; i <= 860000; ++i) {
    const float x = static_cast<float>(-i) * 1e-4f;
    worst = std::max(worst, UlpError(Exp(x), std::exp(static_cast<double>(x))));
  }
  EXPECT_LT(worst, 1.0);
}

TEST(CanonicalMathTest, ExpIsExactAtZeroAndZeroBelowTheFloor) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(std::nextafter(kExpFloor, -INFINITY)), 0.0f);
  EXPECT_EQ(Exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isnan(Exp(NAN)));
}

TEST(CanonicalMathTest, LogIsWithinTwoUlp) {
  double worst = 0;
  for (float x = 1.0f; x < 70000.0f; x *= 1.0001f) {
    worst = std::max(worst, UlpError(Log(x), std::log(static_cast<double>(x))));
  }
  EXPECT_LT(worst, 2.0);
}

TEST(CanonicalMathTest, LogOfOneIsPositiveZeroAndOfNanIsNan) {
  EXPECT_EQ(std::bit_cast<uint32_t>(Log(1.0f)), 0u);
  EXPECT_TRUE(std::isnan(Log(NAN)));
}

TEST(CanonicalMathTest, TanhIsWithinTwoUlpAndOdd) {
  double worst = 0;
  for (float y = 1e-6f; y < 40.0f; y *= 1.0001f) {
    worst = std::max(worst, UlpError(Tanh(y), std::tanh(static_cast<double>(y))));
    ASSERT_EQ(Tanh(-y), -Tanh(y));
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(Tanh(INFINITY), 1.0f);
  EXPECT_TRUE(std::isnan(Tanh(NAN)));
}

TEST(CanonicalMathTest, SumLanesAddsInTheWrittenOrder) {
  // 2^24 swallows a 1 that is added to it alone: the order shows in the result.
  float lanes[kLanes] = {};
  lanes[0] = 16777216.0f;
  lanes[2] = 1.0f;  // Meets lane 0 first and is lost.
  lanes[1] = 1.0f;
  lanes[3] = 1.0f;  // Meets lane 1 first: 2 survives.

  EXPECT_EQ(SumLanes(lanes), 16777218.0f);
}

TEST(CanonicalMathTest, RoundOutputHasOneNan) {
  EXPECT_EQ(RoundOutput(-NAN).bits, 0x7fc0u);
  EXPECT_EQ(RoundOutput(std::bit_cast<float>(0x7f812345u)).bits, 0x7fc0u);
  EXPECT_EQ(RoundOutput(1.0f).bits, 0x3f80u);
}

}  // namespace
}  // namespace lamina::kernels::canonical
