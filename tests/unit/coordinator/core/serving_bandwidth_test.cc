// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/serving_bandwidth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::core {
namespace {

using ::testing::ElementsAre;

TEST(ServingBandwidthTest, IsThatOfTheStartUntilAllNodesHaveAttended) {
  const ServingBandwidth early = BandwidthOf(
      {{.name = "m0", .at_start = 12e9, .attending = 6e9}, {.name = "m1", .at_start = 10e9}});
  EXPECT_THAT(early.bytes_per_second, ElementsAre(12e9, 10e9));
  EXPECT_FALSE(early.measured);
  EXPECT_EQ(early.words, "");
  const ServingBandwidth late = BandwidthOf({{.name = "m0", .at_start = 12e9, .attending = 6e9},
                                             {.name = "m1", .at_start = 10e9, .attending = 2e9}});
  EXPECT_THAT(late.bytes_per_second, ElementsAre(6e9, 2e9));
  EXPECT_TRUE(late.measured);
  EXPECT_EQ(late.words, "by attention of late m0 75%, m1 25%");
}

TEST(ServingBandwidthTest, OfNoNodesIsEmpty) {
  EXPECT_THAT(BandwidthOf({}).bytes_per_second, ElementsAre());
  EXPECT_FALSE(BandwidthOf({}).measured);
}

TEST(AttentionRateTest, IsUnknownUntilASecondOfAttentionAndThenFollows) {
  AttentionRate rate;
  rate.Update(1'000'000'000, 0.5);
  EXPECT_EQ(rate.bytes_per_second(), 0);
  rate.Update(2'000'000'000, 1.0);
  EXPECT_DOUBLE_EQ(rate.bytes_per_second(), 2e9);
  rate.Update(2'000'000'000, 1.0);  // Nothing new.
  EXPECT_DOUBLE_EQ(rate.bytes_per_second(), 2e9);
  double seconds = 1;
  uint64_t bytes = 2'000'000'000;
  for (int i = 0; i < 100; ++i) {
    seconds += 0.5;
    bytes += 250'000'000;
    rate.Update(bytes, seconds);
  }
  EXPECT_NEAR(rate.bytes_per_second(), 0.5e9, 0.05e9);
}

}  // namespace
}  // namespace lamina::core
