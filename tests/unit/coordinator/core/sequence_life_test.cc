// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/sequence_life.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class SequenceLifeTest : public PartsTest {
 protected:
  SequenceLifeTest() { MakeNodes({200}); }
};

TEST_F(SequenceLifeTest, APreemptedSequenceWaitsInItsOldPlaceOnceItsLeaveIsDone) {
  Sequence& first = Run(1, 10);
  Sequence& second = Wait(2, 10);
  life_.Preempt(first);
  EXPECT_EQ(first.state, SequenceState::kDraining);
  EXPECT_THAT(life_.waiting(), ElementsAre(&second));
  EXPECT_TRUE(Audit().ok()) << Audit();

  borders_.Begin(0, 1);
  life_.WaitAgain(borders_.Seal(0).draining);
  EXPECT_THAT(life_.waiting(), ElementsAre(&first, &second));
  EXPECT_THAT(life_.draining(), IsEmpty());
  EXPECT_EQ(life_.preemptions(), 1u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(SequenceLifeTest, OneThatEndsWhileItDrainsIsPassedOverAndNotTold) {
  Sequence& sequence = Run(1, 10);
  life_.Preempt(sequence);
  life_.End(sequence);
  life_.WaitAgain({1});
  Events events;
  life_.TellPreempted(events);

  EXPECT_TRUE(life_.empty());
  EXPECT_THAT(events.preempted, IsEmpty());
}

TEST_F(SequenceLifeTest, ForksLeaveWithAParentWhosePromptIsNotDone) {
  Sequence& parent = Run(1, 10);
  Sequence& fork = Run(2, 10);
  life_.Attach(parent, fork);
  life_.Preempt(parent);

  EXPECT_EQ(fork.state, SequenceState::kDraining);
  EXPECT_EQ(fork.parent, 0u);
  Events events;
  life_.TellPreempted(events);
  EXPECT_THAT(events.preempted, ElementsAre(2, 1));
}

TEST_F(SequenceLifeTest, ForksStayWhenTheLastChunkIsPlanned) {
  Sequence& parent = Run(1, 10);
  Sequence& fork = Run(2, 10);
  life_.Attach(parent, fork);
  parent.chunked_tokens = parent.join_tokens;
  life_.End(parent);

  EXPECT_EQ(fork.state, SequenceState::kPrefilling);
  EXPECT_EQ(fork.parent, 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(SequenceLifeTest, AfterAnEpochAllWaitAndRememberWhatWasLost) {
  Run(1, 10);
  life_.Preempt(Run(2, 10));
  Wait(3, 10);
  Events events;
  for (size_t i = 0; i < LossHistory::kLossesMax; ++i) {
    life_.LeaveEpoch("m0", events);
    MakeNodes({200});
    EXPECT_TRUE(Audit().ok()) << Audit();
    if (i + 1 < LossHistory::kLossesMax) {
      EXPECT_THAT(life_.waiting(), SizeIs(3));
      Start(1);
      Start(2);
    }
  }
  EXPECT_THAT(life_.waiting(), SizeIs(1));
  ASSERT_THAT(events.finished, SizeIs(2));
  EXPECT_EQ(events.finished[0].sequence, 1u);
  EXPECT_EQ(events.finished[0].status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(SequenceLifeTest, ThoseThatNoNodeCouldHoldEnd) {
  Wait(1, 10);  // It can grow to 109 slots.
  Wait(2, 50);
  Events events;
  life_.EndLongerThan({.memory_nodes = {{.name = "m0", .slots = 109}}}, events);

  ASSERT_THAT(events.finished, SizeIs(1));
  EXPECT_EQ(events.finished[0].sequence, 2u);
  EXPECT_NE(life_.Find(1), nullptr);
}

TEST_F(SequenceLifeTest, TheAuditFindsOneThatIsInTwoPlaces) {
  Sequence& sequence = Run(1, 10);
  EXPECT_TRUE(life_.Audit().ok());
  sequence.state = SequenceState::kDraining;
  EXPECT_FALSE(life_.Audit().ok());
}

}  // namespace
}  // namespace lamina::core
