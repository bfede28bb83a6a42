// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/free_runs.h"

#include <gtest/gtest.h>

namespace lamina::core {
namespace {

TEST(FreeRunsTest, NeighboursCoalesceOnBothSides) {
  FreeRuns runs;
  runs.Add({0, 10});
  runs.Add({20, 10});

  runs.Add({10, 10});

  ASSERT_EQ(runs.runs().size(), 1u);
  EXPECT_EQ(runs.Longest(), (Extent{0, 30}));
}

TEST(FreeRunsTest, LastFreedComesFirstAmongThoseThatFit) {
  FreeRuns runs;
  runs.Add({0, 10});
  runs.Add({20, 5});
  runs.Add({40, 2});

  EXPECT_EQ(runs.LastFreed(1), (Extent{40, 2}));
  EXPECT_EQ(runs.LastFreed(3), (Extent{20, 5}));
  EXPECT_EQ(runs.LastFreed(11), std::nullopt);
}

TEST(FreeRunsTest, WhatIsLeftOfARunKeepsItsAge) {
  FreeRuns runs;
  runs.Add({0, 10});
  runs.Add({20, 10});

  runs.Remove({20, 4});

  EXPECT_EQ(runs.LastFreed(1), (Extent{24, 6}));
}

TEST(FreeRunsTest, RemovingTheMiddleLeavesBothEnds) {
  FreeRuns runs;
  runs.Add({0, 30});

  runs.Remove({10, 10});

  EXPECT_EQ(runs.StartingAt(0), (Extent{0, 10}));
  EXPECT_EQ(runs.StartingAt(20), (Extent{20, 10}));
  EXPECT_EQ(runs.LastFreed(1), (Extent{20, 10}));
}

TEST(FreeRunsTest, LongestNearPrefersLengthThenTheLowerAddress) {
  FreeRuns runs;
  runs.Add({0, 4});
  runs.Add({10, 8});
  runs.Add({30, 8});

  EXPECT_EQ(runs.LongestNear(25, 1), (Extent{10, 8}));
  EXPECT_EQ(runs.LongestNear(25, 9), std::nullopt);
}

TEST(FreeRunsTest, EmptyHasNoRun) {
  FreeRuns runs;
  EXPECT_TRUE(runs.empty());
  EXPECT_EQ(runs.Longest(), std::nullopt);
  EXPECT_EQ(runs.LastFreed(0), std::nullopt);
  EXPECT_EQ(runs.StartingAt(0), std::nullopt);
}

}  // namespace
}  // namespace lamina::core
