// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/scratch_space.h"

#include <gtest/gtest.h>

namespace lamina::core {
namespace {

TEST(ScratchSpaceTest, RangesDoNotOverlapAndGapsAreUsedAgain) {
  ScratchSpace scratch(10);
  EXPECT_EQ(scratch.Take(4), 0u);
  EXPECT_EQ(scratch.Take(3), 4u);
  EXPECT_EQ(scratch.Take(3), 7u);
  EXPECT_EQ(scratch.Take(1), std::nullopt);

  scratch.Free(4);

  EXPECT_EQ(scratch.Take(4), std::nullopt);
  EXPECT_EQ(scratch.Take(3), 4u);
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
