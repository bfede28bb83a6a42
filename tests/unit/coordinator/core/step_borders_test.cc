// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/step_borders.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class StepBordersTest : public PartsTest {};

TEST_F(StepBordersTest, SlotsAndScratchAreFreeOnceTheStepIsDone) {
  MakeNodes({100});
  Sequence& sequence = Run(1, 10);
  sequence.scratch_offset = *borders_.TakeScratch(0, 10);
  sequence.has_scratch = true;
  life_.End(sequence);
  EXPECT_EQ(kv_.directory().SlotsFree(0), 90u);
  EXPECT_FALSE(borders_.empty());

  borders_.Begin(0, 1);
  const StepBorder border = borders_.Seal(0);
  EXPECT_THAT(border.leaves, ElementsAre(plan::SequenceLeave{1}));
  EXPECT_TRUE(borders_.empty());
  EXPECT_EQ(kv_.directory().SlotsFree(0), 90u);
  EXPECT_FALSE(borders_.rooms_empty());

  borders_.Pass(0, border);
  EXPECT_EQ(kv_.directory().SlotsFree(0), 100u);
  EXPECT_TRUE(borders_.rooms_empty());
}

TEST_F(StepBordersTest, WhoLeavesWhileAStepIsMadeLeavesWithIt) {
  MakeNodes({100});
  Sequence& sequence = Run(1, 10);
  borders_.Begin(0, 7);
  life_.Preempt(sequence);

  const StepBorder border = borders_.Seal(0);
  EXPECT_THAT(border.leaves, ElementsAre(plan::SequenceLeave{1}));
  EXPECT_THAT(border.draining, ElementsAre(1));
}

TEST_F(StepBordersTest, WhoHasWorkInTheStepLeavesWithTheOneBehindIt) {
  MakeNodes({100});
  Sequence& sequence = Run(1, 10);
  borders_.Begin(0, 7);
  sequence.last_work = 7;
  life_.Preempt(sequence);

  const StepBorder border = borders_.Seal(0);
  EXPECT_THAT(border.leaves, IsEmpty());
  EXPECT_THAT(border.draining, IsEmpty());
  EXPECT_FALSE(borders_.empty());
  borders_.Pass(0, border);
  EXPECT_EQ(kv_.directory().SlotsFree(0), 90u);

  borders_.Begin(0, 8);
  const StepBorder next = borders_.Seal(0);
  EXPECT_THAT(next.leaves, ElementsAre(plan::SequenceLeave{1}));
  EXPECT_THAT(next.draining, ElementsAre(1));
  borders_.Pass(0, next);
  EXPECT_EQ(kv_.directory().SlotsFree(0), 100u);
}

TEST_F(StepBordersTest, WorkInAnotherLaneDoesNotDelayALeave) {
  MakeNodes({100});
  Sequence& sequence = Run(1, 10, /*lane=*/1);
  borders_.Begin(0, 7);
  sequence.last_work = 7;
  life_.Preempt(sequence);
  EXPECT_THAT(borders_.Seal(0).leaves, IsEmpty());

  borders_.Begin(1, 8);
  EXPECT_THAT(borders_.Seal(1).leaves, ElementsAre(plan::SequenceLeave{1}));
}

// Twice, before the first of the two leaves is done.
TEST_F(StepBordersTest, PlacesGoToThoseThatJoinInTheSameLane) {
  MakeNodes({100});
  borders_.Reset({.lanes = 2, .scratch_tokens = 1000, .resident_tokens = 32});
  const auto leave = [&](plan::SequenceId id) {
    Sequence& sequence = Run(id, 10);
    sequence.resident = {.tokens = 32};
    life_.End(sequence);
    borders_.Begin(0, id);
    return borders_.Seal(0);
  };
  ASSERT_EQ(borders_.TakeResident(0, 32), 0u);

  const StepBorder first = leave(1);
  EXPECT_EQ(borders_.TakeResident(1, 32), std::nullopt) << "its steps may come earlier";
  EXPECT_EQ(borders_.TakeResident(0, 32), 0u);
  EXPECT_EQ(borders_.TakeResident(0, 32), std::nullopt);

  const StepBorder second = leave(2);
  borders_.Pass(0, first);
  EXPECT_FALSE(borders_.rooms_empty());
  EXPECT_EQ(borders_.TakeResident(1, 32), std::nullopt);

  borders_.Pass(0, second);
  EXPECT_TRUE(borders_.rooms_empty());
  EXPECT_EQ(borders_.TakeResident(0, 32), 0u);
  EXPECT_EQ(borders_.TakeResident(1, 32), std::nullopt);
}

TEST_F(StepBordersTest, ReplicasForPromptsHaveScratchOfTheirOwn) {
  MakeNodes({100}, /*lanes=*/1, 0, {.replicas = 2, .each = 2});
  EXPECT_EQ(borders_.TakeScratch(1, 900), 0u);
  EXPECT_EQ(borders_.TakeScratch(2, 900), std::nullopt);
  EXPECT_EQ(borders_.TakeScratch(3, 900), 0u);
}

}  // namespace
}  // namespace lamina::core
