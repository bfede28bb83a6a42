// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_starts.h"

#include <gtest/gtest.h>

#include <vector>

namespace lamina::compute_node {
namespace {

class StepStartsTest : public testing::Test {
 protected:
  StepStartsTest() {
    for (uint32_t i = 0; i < lanes_.size(); ++i) {
      lanes_[i].index = i;
    }
  }

  void Plan(uint32_t lane) { lanes_[lane].plans.emplace_back(); }
  // Begins the steps of all lanes that have plans.
  void Begin(StepStarts& starts) {
    for (Lane& lane : lanes_) {
      if (!lane.plans.empty()) {
        lane.plans.clear();
        lane.phase = LanePhase::kReady;
      }
    }
    starts.Began(lanes_);
  }
  // A round of lanes 0 and 1.
  void BeginTwo(StepRounds& rounds) {
    Plan(0);
    Plan(1);
    ASSERT_TRUE(rounds.MayBegin(lanes_, 0));
    Begin(rounds);
  }
  void End(uint32_t lane) { lanes_[lane].phase = LanePhase::kIdle; }

  std::vector<Lane> lanes_ = std::vector<Lane>(3);
};

TEST_F(StepStartsTest, LanesBeginAtAnyTimeWhereWeightsStay) {
  StepsAtOnce starts;
  Plan(0);
  EXPECT_TRUE(starts.MayBegin(lanes_, 0));
  Begin(starts);
  Plan(1);
  EXPECT_TRUE(starts.MayBegin(lanes_, 1));
  EXPECT_EQ(starts.Nap(lanes_, 1, Seconds(1)), Seconds(1));
}

TEST_F(StepStartsTest, ALaneThatComesLateWaitsForTheEndOfTheRound) {
  StepRounds rounds(3);
  BeginTwo(rounds);
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

TEST_F(StepStartsTest, ALaneThatHasNothingMoreIsNotWaitedForLong) {
  StepRounds rounds(3);
  BeginTwo(rounds);
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
TEST_F(StepStartsTest, PlansWithoutRowsMakeNoRound) {
  StepRounds rounds(3);
  BeginTwo(rounds);
  End(0);
  End(1);
  EXPECT_FALSE(rounds.MayBegin(lanes_, 100));
  rounds.Began(lanes_);
  Plan(0);
  EXPECT_FALSE(rounds.MayBegin(lanes_, 200));
  Plan(1);
  EXPECT_TRUE(rounds.MayBegin(lanes_, 300));
}

TEST_F(StepStartsTest, TheEarliestSliceIsTheSlowestLanes) {
  EXPECT_EQ(StepStarts::Earliest(lanes_), 0u);
  lanes_[0].phase = LanePhase::kReady;
  lanes_[0].slice = 7;
  EXPECT_EQ(StepStarts::Earliest(lanes_), 7u);
  lanes_[2].phase = LanePhase::kWaiting;
  lanes_[2].slice = 5;
  EXPECT_EQ(StepStarts::Earliest(lanes_), 5u);
}

}  // namespace
}  // namespace lamina::compute_node
