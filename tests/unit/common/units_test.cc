// SPDX-License-Identifier: Apache-2.0
#include "common/units.h"

#include <gtest/gtest.h>

namespace lamina {
namespace {

TEST(UnitsTest, ParsesBytesWithBinaryAndDecimalUnits) {
  EXPECT_EQ(ParseBytes("512MiB").value(), MiB(512));
  EXPECT_EQ(ParseBytes(" 2 GiB ").value(), GiB(2));
  EXPECT_EQ(ParseBytes("1.5KB").value(), 1500u);
  EXPECT_EQ(ParseBytes("17").value(), 17u);
}

TEST(UnitsTest, RefusesWhatIsNotAQuantity) {
  for (const char* text : {"", "GiB", "2 gigs", "-1", "1e30TiB", "nan", "99999999999999TiB"}) {
    EXPECT_EQ(ParseBytes(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(UnitsTest, ParsesDurations) {
  EXPECT_EQ(ParseDuration("250ms").value(), Millis(250));
  EXPECT_EQ(ParseDuration("5s").value(), Seconds(5));
  EXPECT_FALSE(ParseDuration("5").ok()) << "a time without a unit is ambiguous";
}

TEST(UnitsTest, FormatsBytes) {
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(GiB(3) / 2), "1.5 GiB");
}

}  // namespace
}  // namespace lamina
