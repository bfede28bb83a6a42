// SPDX-License-Identifier: Apache-2.0
#include "compute_node/reads_seen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::compute_node {
namespace {

using ::testing::ElementsAre;

TEST(SeenInTest, ReadsThatHardlyDifferAreOneGroup) {
  const ReadsSeen seen = SeenIn({40, 36, 43, 38}, /*group_min=*/1);
  EXPECT_EQ(seen.low, 36);
  EXPECT_EQ(seen.high, 43);
  EXPECT_THAT(seen.groups, ElementsAre(ElementsAre(0, 1, 2, 3)));
}

// Nearer by factors: 48 is 1.3 times 37, and 63 that of 48.3.
TEST(SeenInTest, EachBelongsToTheNearerEnd) {
  EXPECT_THAT(SeenIn({63, 37, 50, 46, 61}, /*group_min=*/1).groups,
              ElementsAre(ElementsAre(1, 3), ElementsAre(0, 2, 4)));
}

TEST(SeenInTest, AFewOddTurnsAreNoGroup) {
  const ReadsSeen seen = SeenIn({37, 63, 36, 38, 37, 61}, /*group_min=*/3);
  EXPECT_THAT(seen.groups, ElementsAre(ElementsAre(0, 2, 3, 4)));
  EXPECT_EQ(seen.high, 63) << "it has been seen all the same";
  EXPECT_THAT(SeenIn({63, 37, 63}, /*group_min=*/2).groups, ElementsAre(ElementsAre(0, 2)));
  EXPECT_THAT(SeenIn({63, 37}, /*group_min=*/2).groups, ElementsAre(ElementsAre(1)))
      << "of two alike the slow one";
}

TEST(SeenInTest, ReadsThatAreNotKnownAreOneGroup) {
  EXPECT_THAT(SeenIn({0, 0}, /*group_min=*/1).groups, ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(SeenIn({0, 63}, /*group_min=*/1).groups, ElementsAre(ElementsAre(0, 1)));
}

TEST(MedianTest, OfAnEvenNumberItIsTheLowerOrTheHigherOne) {
  EXPECT_EQ(LowerMedian({4, 1, 3, 2}), 2);
  EXPECT_EQ(UpperMedian({4, 1, 3, 2}), 3);
  EXPECT_EQ(LowerMedian({5}), 5);
  EXPECT_EQ(UpperMedian({3, 1, 2}), 2);
}

}  // namespace
}  // namespace lamina::compute_node
