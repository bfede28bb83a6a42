// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_rounds.h"

#include <gtest/gtest.h>

#include <vector>

namespace lamina::compute_node {
namespace {

class StepRoundsTest : public testing::Test {
 protected:
  StepRoundsTest() {
    for (uint32_t i = 0; i < lanes_.size(); ++i) {
      lanes_[i].index = i;
    }
  }

  void Plan(uint32_t lane) { lanes_[lane].plans.emplace_back(); }
  // Begins the steps of all lanes that have plans.
  void Begin(StepRounds& rounds) {
    for (Lane& lane : lanes_) {
      if (!lane.plans.empty()) {
        lane.plans.clear();
        lane.phase = LanePhase::kReady;
      }
    }
    rounds.Began(lanes_);
  }
  void End(uint32_t lane) { lanes_[lane].phase = LanePhase::kIdle; }

  std::vector<Lane> lanes_ = std::vector<Lane>(3);
};

TEST_F(StepRoundsTest, LanesBeginAtAnyTimeWhereWeightsStay) {
  StepRounds rounds(/*together=*/false, 3);
  Plan(0);
  EXPECT_TRUE(rounds.MayBegin(lanes_, 0));
  Begin(rounds);
  Plan(1);
  EXPECT_TRUE(rounds.MayBegin(lanes_, 1));
  EXPECT_EQ(rounds.Nap(lanes_, 1, Seconds(1)), Seconds(1));
}

TEST_F(StepRoundsTest, ALaneThatComesLateWaitsForTheEndOfTheRound) {
  StepRounds rounds(/*together=*/true, 3);
  Plan(0);
  Plan(1);
  ASSERT_TRUE(rounds.MayBegin(lanes_, 0));
  Begin(rounds);
  Plan(2);
  EXPECT_FALSE(rounds.MayBegin(lanes_, Seconds(5)));
  End(0);
  EXPECT_FALSE(rounds.MayBegin(lanes_, Seconds(6)));
  Plan(0);
  End(1);
  // Lane 1 was part of it: its plan is on its way.
  EXPECT_FALSE(rounds.MayBegin(lanes_, Seconds(7)));
  EXPECT_EQ(rounds.Nap(lanes_, Seconds(7) + 1, Seconds(1)), StepRounds::kLinger - 1);
  Plan(1);
  EXPECT_TRUE(rounds.MayBegin(lanes_, Seconds(7) + 2));
  Begin(rounds);
  EXPECT_EQ(lanes_[2].phase, LanePhase::kReady);
}

TEST_F(StepRoundsTest, ALaneThatHasNothingMoreIsNotWaitedForLong) {
  StepRounds rounds(/*together=*/true, 3);
  Plan(0);
  Plan(1);
  ASSERT_TRUE(rounds.MayBegin(lanes_, 0));
  Begin(rounds);
  End(0);
  End(1);
  Plan(0);
  EXPECT_FALSE(rounds.MayBegin(lanes_, 100));
  EXPECT_FALSE(rounds.MayBegin(lanes_, 99 + StepRounds::kLinger));
  EXPECT_EQ(rounds.Nap(lanes_, 200 + StepRounds::kLinger, Seconds(1)), 0);
  EXPECT_TRUE(rounds.MayBegin(lanes_, 100 + StepRounds::kLinger));
  Begin(rounds);
  End(0);
  Plan(0);
  EXPECT_TRUE(rounds.MayBegin(lanes_, Seconds(9)));  // Lane 1 was not part of this one.
}

// Leaves end at once, and say nothing about what comes.
TEST_F(StepRoundsTest, PlansWithoutRowsMakeNoRound) {
  StepRounds rounds(/*together=*/true, 3);
  Plan(0);
  Plan(1);
  ASSERT_TRUE(rounds.MayBegin(lanes_, 0));
  Begin(rounds);
  End(0);
  End(1);
  EXPECT_FALSE(rounds.MayBegin(lanes_, 100));
  rounds.Began(lanes_);
  Plan(0);
  EXPECT_FALSE(rounds.MayBegin(lanes_, 200));
  Plan(1);
  EXPECT_TRUE(rounds.MayBegin(lanes_, 300));
}

TEST_F(StepRoundsTest, TheEarliestSliceIsTheSlowestLanes) {
  EXPECT_EQ(StepRounds::Earliest(lanes_), 0u);
  lanes_[0].phase = LanePhase::kReady;
  lanes_[0].slice = 7;
  EXPECT_EQ(StepRounds::Earliest(lanes_), 7u);
  lanes_[2].phase = LanePhase::kWaiting;
  lanes_[2].slice = 5;
  EXPECT_EQ(StepRounds::Earliest(lanes_), 5u);
}

}  // namespace
}  // namespace lamina::compute_node
