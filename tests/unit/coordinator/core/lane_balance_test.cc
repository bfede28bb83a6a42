// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/lane_balance.h"

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

class LaneBalanceTest : public PartsTest {
 protected:
  LaneBalanceTest() {
    MakeNodes({100'000}, 2);
    steps_.Reset(2);
  }
  Sequence& Decode(plan::SequenceId id, uint32_t prompt, uint32_t lane) {
    Sequence& sequence = Run(id, prompt, lane);
    ++sequence.planned_tokens;
    life_.Decode(sequence);
    return sequence;
  }

  SchedulerOptions options_{.lanes = 2, .rows_max = 2};
  PlannedSteps steps_;
  LanePaths paths_{lanes_, life_};
  LaneBalance balance_{options_, lanes_, paths_, steps_, kv_};
};

TEST_F(LaneBalanceTest, ASequenceMovesFromTheLaneWithMostWorkToTheOneWithLeast) {
  Decode(1, 4000, 0);
  Sequence& second = Decode(2, 4000, 0);
  balance_.Balance(0);

  EXPECT_EQ(balance_.moves(), 1u);
  EXPECT_EQ(lanes_[1].running.size(), 1u);
  EXPECT_EQ(second.lane + life_.Find(1)->lane, 1u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(LaneBalanceTest, ItMovesOnlyWhenItsPlannedStepsAreDone) {
  Decode(1, 4000, 0).last_step = 1;
  Decode(2, 4000, 0).last_step = 1;
  steps_.Add(0, {.step = 1});
  balance_.Balance(0);
  EXPECT_EQ(balance_.moves(), 0u);
  EXPECT_EQ(lanes_.moving(), 1u);

  steps_.TakeOldest(0);
  balance_.Balance(0);
  EXPECT_EQ(balance_.moves(), 1u);
  EXPECT_EQ(lanes_.moving(), 0u);
}

TEST_F(LaneBalanceTest, AHeldLaneTakesAllAsFarAsThereIsRoom) {
  Decode(1, 10, 0);
  Decode(2, 10, 1);
  Decode(3, 10, 1);
  balance_.HoldLanes(1, "said the test");
  balance_.Balance(0);

  EXPECT_EQ(balance_.count().why, "1, said the test");
  EXPECT_EQ(lanes_[0].running.size(), 2u);
  EXPECT_FALSE(balance_.HasRoomForRow(0));
  EXPECT_FALSE(balance_.HasRoomForRow(1));
}

}  // namespace
}  // namespace lamina::core
