// SPDX-License-Identifier: Apache-2.0
#include "common/extent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace lamina {
namespace {

using ::testing::ElementsAre;

TEST(ExtentTest, OnlySlotsThatContinueTheLastExtentLengthenIt) {
  std::vector<Extent> extents;
  AppendExtent(extents, {.first_slot = 8, .tokens = 2});
  AppendExtent(extents, {.first_slot = 10, .tokens = 3});
  AppendExtent(extents, {.first_slot = 14, .tokens = 1});
  AppendExtent(extents, {.first_slot = 13, .tokens = 1});

  EXPECT_THAT(extents, ElementsAre(Extent{.first_slot = 8, .tokens = 5},
                                   Extent{.first_slot = 14, .tokens = 1},
                                   Extent{.first_slot = 13, .tokens = 1}));
}

}  // namespace
}  // namespace lamina
