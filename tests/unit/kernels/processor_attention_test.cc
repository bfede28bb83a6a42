// SPDX-License-Identifier: Apache-2.0
#include "kernels/processor_attention.h"

#include <gtest/gtest.h>

#include "kernels/pair_attention.h"
#include "kernels/tile_attention.h"

namespace lamina::kernels {
namespace {

TEST(ProcessorAttentionTest, EachArithmeticOfProcessorsHasItsKernel) {
  const AttentionKernel& canonical = ReferenceAttention();
  EXPECT_EQ(*AttentionOfProcessor(AttentionArithmetic::kCanonical, canonical), &canonical);
  EXPECT_EQ(*AttentionOfProcessor(AttentionArithmetic::kPairs, canonical), &CpuPairAttention());
  EXPECT_EQ(*AttentionOfProcessor(AttentionArithmetic::kTiles, canonical), &CpuTileAttention());
  for (const auto other : {AttentionArithmetic::kTensor, AttentionArithmetic::kAuto}) {
    EXPECT_EQ(AttentionOfProcessor(other, canonical).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// Where the processor has no tiles nothing is asked, so that there is nothing to warn of.
TEST(ProcessorAttentionTest, AskingForTilesChangesNoChoice) {
  const AttentionArithmetic before = FastAttention();
  AskForAttentionTiles();
  EXPECT_EQ(FastAttention(), before);
  EXPECT_EQ(before == AttentionArithmetic::kTiles, HasTileAttention());
}

TEST(ProcessorAttentionTest, WhatIsEmulatedIsNotFast) {
  switch (FastAttention()) {
    case AttentionArithmetic::kTiles:
      EXPECT_TRUE(HasTileAttention());
      break;
    case AttentionArithmetic::kPairs:
      EXPECT_TRUE(HasFastPairAttention());
      EXPECT_FALSE(HasTileAttention());
      break;
    default:
      EXPECT_EQ(FastAttention(), AttentionArithmetic::kCanonical);
      EXPECT_FALSE(HasTileAttention() || HasFastPairAttention());
  }
}

}  // namespace
}  // namespace lamina::kernels
