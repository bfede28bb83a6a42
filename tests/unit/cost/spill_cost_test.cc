// SPDX-License-Identifier: Apache-2.0
#include "cost/spill_cost.h"

#include <gtest/gtest.h>

namespace lamina::cost {
namespace {

// 10 tokens of 100 bytes: 10 s out and 2 s back.
constexpr SpillRates kRates = {.write_bytes_per_second = 100,
                               .read_bytes_per_second = 500,
                               .bytes_per_token = 100,
                               .prompt_tokens_per_second = 1};

TEST(SpillCostTest, BytesGoBothWays) {
  EXPECT_DOUBLE_EQ(SpillSeconds(kRates, 10), 12);
  EXPECT_DOUBLE_EQ(RecomputeSeconds(kRates, 10), 10);
  EXPECT_EQ(SpillSeconds(kRates, 0), 0);
}

TEST(SpillCostTest, TheFasterOfBothPays) {
  EXPECT_FALSE(SpillPays(kRates, 10));
  SpillRates slower = kRates;
  slower.prompt_tokens_per_second = 0.8;
  EXPECT_TRUE(SpillPays(slower, 10)) << "12 s against 12.5";
}

// 130 tokens in blocks of 64 have two behind these, which are bf16.
TEST(SpillCostTest, TokensOfAnOpenBlockHaveTwiceTheBytes) {
  SpillRates int8 = kRates;
  int8.block_tokens = 64;
  EXPECT_DOUBLE_EQ(SpillSeconds(int8, 130), SpillSeconds(kRates, 132));
  EXPECT_DOUBLE_EQ(SpillSeconds(int8, 128), SpillSeconds(kRates, 128));
  EXPECT_DOUBLE_EQ(RecomputeSeconds(int8, 130), 130);
}

TEST(SpillCostTest, WithoutATierNothingPays) {
  EXPECT_FALSE(SpillPays({.bytes_per_token = 1, .prompt_tokens_per_second = 1e-9}, 10));
}

TEST(SpillCostTest, WithoutAMeasuredPromptTheTierDoes) {
  SpillRates unmeasured = kRates;
  unmeasured.prompt_tokens_per_second = 0;
  EXPECT_TRUE(SpillPays(unmeasured, 10));
}

}  // namespace
}  // namespace lamina::cost
