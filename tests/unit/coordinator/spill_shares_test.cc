// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spill_shares.h"

#include <gtest/gtest.h>

namespace lamina::coordinator {
namespace {

// Blocks of 64 tokens take whole pages of 4 KiB: two for tokens of 100 bytes, four for 200.
constexpr control::SpillTier kTier = {
    .capacity_bytes = 200 * 4096, .write_bytes_per_second = 50, .read_bytes_per_second = 200};

TEST(SpillSharesTest, OneNodeHoldsWholeBlocks) {
  const core::SpillShare share = SpillShareOf({{.tier = kTier, .bytes_per_token = 100}});
  EXPECT_EQ(share.blocks, 100u);
  EXPECT_EQ(share.nodes, 1u);
  EXPECT_EQ(share.rates.bytes_per_token, 100);
  EXPECT_EQ(share.rates.write_bytes_per_second, 50);
  EXPECT_EQ(share.rates.read_bytes_per_second, 200);
}

// The second node has twice the bytes of each token, and writes twice as fast.
TEST(SpillSharesTest, NodesWithHeadsAreAsFastAsTheSlowestAndHoldWhatTheSmallestDoes) {
  control::SpillTier other = kTier;
  other.write_bytes_per_second = 100;
  const core::SpillShare share = SpillShareOf(
      {{.tier = kTier, .bytes_per_token = 100}, {.tier = other, .bytes_per_token = 200}});
  EXPECT_EQ(share.blocks, 50u);
  EXPECT_EQ(share.nodes, 2u);
  EXPECT_EQ(share.rates.bytes_per_token, 300);
  EXPECT_DOUBLE_EQ(share.rates.write_bytes_per_second, 150) << "two seconds for each token";
  EXPECT_DOUBLE_EQ(share.rates.read_bytes_per_second, 300) << "one second, that of the other";
}

TEST(SpillSharesTest, WithoutATierOnEachThereIsNone) {
  EXPECT_EQ(
      SpillShareOf({{.tier = kTier, .bytes_per_token = 100}, {.bytes_per_token = 100}}).blocks, 0u);
  control::SpillTier unmeasured = kTier;
  unmeasured.read_bytes_per_second = 0;
  EXPECT_EQ(SpillShareOf({{.tier = unmeasured, .bytes_per_token = 100}}).blocks, 0u);
}

}  // namespace
}  // namespace lamina::coordinator
