// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/placement.h"

#include <gtest/gtest.h>

namespace lamina::core {
namespace {

TEST(PlacementTest, TheFirstSequenceRunsOnLaneZero) { EXPECT_EQ(PickLane({{}, {}, {}}), 0u); }

TEST(PlacementTest, TheLaneWithLeastWorkIsPicked) {
  EXPECT_EQ(PickLane({{.rows = 1, .context_tokens = 100}, {.rows = 1, .context_tokens = 90}}), 1u);
  EXPECT_EQ(PickLane({{.rows = 5, .context_tokens = 50}, {.rows = 1, .context_tokens = 90}}), 1u);
}

TEST(PlacementTest, LanesWithoutRoomArePassedOver) {
  EXPECT_EQ(PickLane({{.has_room = false}, {.rows = 9, .context_tokens = 1000}}), 1u);
  EXPECT_EQ(PickLane({{.has_room = false}}), std::nullopt);
}

TEST(PlacementTest, AnOpenLaneIsPreferredUnlessAnotherHasMuchLess) {
  EXPECT_EQ(PickLane({{.rows = 2, .context_tokens = 90, .open = false},
                      {.rows = 2, .context_tokens = 92}}),
            1u);
  EXPECT_EQ(PickLane({{.rows = 1, .context_tokens = 90, .open = false},
                      {.rows = 2, .context_tokens = 92}}),
            std::nullopt);
  EXPECT_EQ(PickLane({{.has_room = false, .open = false}, {.rows = 9, .context_tokens = 1000}}),
            1u);
  EXPECT_EQ(PickLane({{.open = false}}), std::nullopt);
}

TEST(PlacementTest, TheNodeThatLeastRaisesTheLongestTimeIsPicked) {
  // 300/3 and 120/1: on the fast node the longest time stays 120.
  EXPECT_EQ(PickMemoryNode({{.lane_context_tokens = 300, .bandwidth = 3},
                            {.lane_context_tokens = 120, .bandwidth = 1}},
                           50),
            0u);
  EXPECT_EQ(PickMemoryNode({{.lane_context_tokens = 300, .bandwidth = 3},
                            {.lane_context_tokens = 20, .bandwidth = 1}},
                           50),
            1u);
}

TEST(PlacementTest, OnATieTheNodeThatIsDoneFirstIsPicked) {
  EXPECT_EQ(PickMemoryNode({{.lane_context_tokens = 900, .bandwidth = 1},
                            {.lane_context_tokens = 300, .bandwidth = 1},
                            {.lane_context_tokens = 100, .bandwidth = 1}},
                           50),
            2u);
}

TEST(PlacementTest, NodesWhereItDoesNotFitArePassedOver) {
  EXPECT_EQ(
      PickMemoryNode(
          {{.bandwidth = 1, .fits = false}, {.lane_context_tokens = 500, .bandwidth = 1}}, 50),
      1u);
  EXPECT_EQ(PickMemoryNode({{.fits = false}}, 50), std::nullopt);
}

}  // namespace
}  // namespace lamina::core
