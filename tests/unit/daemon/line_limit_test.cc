// SPDX-License-Identifier: Apache-2.0
#include "daemon/line_limit.h"

#include <gtest/gtest.h>

namespace lamina::daemon {
namespace {

TEST(LineLimitTest, OfEachPlaceAFewLinesAreLoggedAndThenANumber) {
  LineLimit limit;
  constexpr Nanos kStart = Seconds(5);
  for (uint32_t i = 0; i < LineLimit::kLinesMax; ++i) {
    EXPECT_TRUE(limit.Take("call.cc", 7, kStart).logs);
  }
  EXPECT_FALSE(limit.Take("call.cc", 7, kStart + 1).logs);
  EXPECT_FALSE(limit.Take("call.cc", 7, kStart + LineLimit::kWindow - 1).logs);
  EXPECT_TRUE(limit.Take("call.cc", 8, kStart + 1).logs) << "another place";
  EXPECT_TRUE(limit.Take("ssl.cc", 7, kStart + 1).logs) << "another file";

  const LineLimit::Verdict next = limit.Take("call.cc", 7, kStart + LineLimit::kWindow);

  EXPECT_TRUE(next.logs);
  EXPECT_EQ(next.dropped, 2u);
  EXPECT_EQ(limit.Take("call.cc", 7, kStart + LineLimit::kWindow).dropped, 0u) << "told once";
}

}  // namespace
}  // namespace lamina::daemon
