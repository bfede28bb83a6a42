// SPDX-License-Identifier: Apache-2.0
#include "common/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lamina {
namespace {

TEST(BFloat16Test, RoundsToNearestEven) {
  EXPECT_EQ(ToBFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80) << "tie goes to even";
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82) << "tie goes to even";
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
}

TEST(BFloat16Test, KeepsInfinityAndNan) {
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(ToFloat(ToBFloat16(std::numeric_limits<float>::max()))));
}

TEST(BFloat16Test, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    if (!std::isnan(ToFloat(x))) {
      ASSERT_EQ(ToBFloat16(ToFloat(x)).bits, x.bits);
    }
  }
}

}  // namespace
}  // namespace lamina
