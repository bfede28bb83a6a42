// SPDX-License-Identifier: Apache-2.0
#include "plan/slice_order.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace lamina::plan {
namespace {

TEST(SliceOrderTest, ALaneThatWasIdleNeitherRunsAloneNorWaits) {
  FewestSlicesFirst turns(2);
  turns.Begin(0);
  for (int i = 0; i < 100; ++i) {
    turns.SetReady(0);
    EXPECT_EQ(turns.Next(), 0u);
  }
  turns.Begin(1);
  std::vector<uint32_t> order;
  turns.SetReady(0);
  turns.SetReady(1);
  for (int i = 0; i < 6; ++i) {
    order.push_back(*turns.Next());
    turns.SetReady(order.back());
  }
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 1, 0, 1, 0, 1}));
}

TEST(SliceOrderTest, ALaneThatEndedIsNotNext) {
  FewestSlicesFirst turns(2);
  turns.Begin(1);
  turns.SetReady(1);
  turns.End(1);
  EXPECT_EQ(turns.Next(), std::nullopt);
}

// Lane 1 comes to the stage first and stays in front through all its layers, however many it runs.
TEST(SliceOrderTest, TheOldestVisitGoesThroughTheStageFirst) {
  OldestVisitFirst order(2);
  for (const uint32_t lane : {0u, 1u}) {
    order.Begin(lane);
  }
  order.BeginVisit(1);
  order.BeginVisit(0);
  for (int slice = 0; slice < 3; ++slice) {
    order.SetReady(0);
    order.SetReady(1);
    EXPECT_EQ(order.Next(), 1u);
  }
  order.BeginVisit(1);
  order.SetReady(1);
  EXPECT_EQ(order.Next(), 0u);
}

}  // namespace
}  // namespace lamina::plan
