// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/scratch_space.h"

#include <gtest/gtest.h>

namespace lamina::core {
namespace {

TEST(ScratchSpaceTest, RangesDoNotOverlapAndGapsAreUsedAgain) {
  ScratchSpace scratch(70);
  EXPECT_EQ(scratch.Take(32), 0u);
  EXPECT_EQ(scratch.Take(10), 32u);
  EXPECT_EQ(scratch.Take(16), 48u) << "offsets are multiples of 16";
  EXPECT_EQ(scratch.Take(7), std::nullopt);
  EXPECT_EQ(scratch.Take(6), 64u);

  scratch.Free(32);

  EXPECT_EQ(scratch.Take(17), std::nullopt);
  EXPECT_EQ(scratch.Take(16), 32u);
}

TEST(ScratchSpaceTest, WhatIsLeftBehindAnUnevenEndIsNoRoom) {
  ScratchSpace scratch(10);
  EXPECT_EQ(scratch.Take(3), 0u);
  EXPECT_EQ(scratch.Take(1), std::nullopt);
}

TEST(ScratchSpaceTest, TheWholeSpaceFitsOnce) {
  ScratchSpace scratch(10);
  EXPECT_EQ(scratch.Take(11), std::nullopt);
  EXPECT_EQ(scratch.Take(10), 0u);
  EXPECT_EQ(scratch.Take(1), std::nullopt);
  scratch.Free(0);
  EXPECT_TRUE(scratch.empty());
}

}  // namespace
}  // namespace lamina::core
