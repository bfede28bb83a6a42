// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/scheduler.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST_F(SchedulerTest, GeneratesEveryIndexOnceUpToTheLength) {
  Make(SmallOptions());
  ASSERT_TRUE(Submit(1, 10, 14).ok());

  RunUntilIdle();

  EXPECT_THAT(IndicesOf(1), ElementsAre(0, 1, 2, 3));
  ASSERT_NE(EndOf(1), nullptr);
  EXPECT_EQ(EndOf(1)->reason, plan::FinishReason::kLength);
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 1000u);
}

TEST_F(SchedulerTest, JoinBringsSlotsForThePromptAndItsFirstChunk) {
  Make(SmallOptions());
  ASSERT_TRUE(Submit(1, 40, 50).ok());

  const std::vector<plan::StepPlan> plans = Plan();

  ASSERT_THAT(plans, SizeIs(2));
  EXPECT_THAT(plans[0].joins, SizeIs(1));
  ASSERT_THAT(plans[0].allocations, SizeIs(1));
  EXPECT_EQ(plans[0].allocations[0].extent, (Extent{0, 40}));
  EXPECT_EQ(plans[0].chunks[0].tokens, 32u);
  EXPECT_EQ(plans[1].chunks[0].first_token, 32u);
  EXPECT_TRUE(plans[1].chunks[0].last);
}

TEST_F(SchedulerTest, AJoinNamesThePathOfItsEpoch) {
  Make(SmallOptions());
  ASSERT_TRUE(Submit(1, 4, 50).ok());
  EXPECT_EQ(Plan().at(0).joins.at(0).path, plan::AttentionPath::kRemote);

  Make(SmallOptions());
  scheduler_->SetAttentionPath(plan::AttentionPath::kLocal);
  ASSERT_TRUE(Submit(1, 4, 50).ok());
  EXPECT_EQ(Plan().at(0).joins.at(0).path, plan::AttentionPath::kLocal);
}

TEST_F(SchedulerTest, DecodeBeginsAfterTheLastChunkIsDone) {
  Make(SmallOptions());
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  ASSERT_THAT(Plan(), SizeIs(1));

  EXPECT_THAT(Plan(), IsEmpty());
  StepDone();
  const std::vector<plan::StepPlan> plans = Plan();

  ASSERT_THAT(plans, SizeIs(2));  // plan_ahead
  EXPECT_EQ(plans[0].rows[0].position, 10u);
  EXPECT_EQ(plans[1].rows[0].position, 11u);
}

TEST_F(SchedulerTest, StepBudgetIsSharedByRowsAndSeveralPrompts) {
  SchedulerOptions options = SmallOptions();
  options.step_tokens_max = 20;
  options.plan_ahead = 1;
  Make(options);
  ASSERT_TRUE(Submit(1, 4, 20).ok());
  Plan();
  StepDone();
  ASSERT_TRUE(Submit(2, 8, 20).ok());
  ASSERT_TRUE(Submit(3, 30, 40).ok());

  const plan::StepPlan plan = Plan().front();

  EXPECT_THAT(plan.rows, SizeIs(1));
  ASSERT_THAT(plan.chunks, SizeIs(2));
  EXPECT_EQ(plan.chunks[0].tokens, 8u);
  EXPECT_EQ(plan.chunks[1].tokens, 11u);
  EXPECT_EQ(plan.chunks[1].scratch_offset, 16u);  // At a tile of K.
}

TEST_F(SchedulerTest, EndTokenEndsItAndLaterRowsAreDiscarded) {
  Make(SmallOptions());
  SequenceRequest request = Request(1, 10, 50);
  request.end_tokens = {7};
  tokens_[{1, 12}] = 7;
  ASSERT_TRUE(scheduler_->Submit(request).ok());

  RunUntilIdle();

  EXPECT_THAT(IndicesOf(1), ElementsAre(0, 1, 2));
  EXPECT_EQ(EndOf(1)->reason, plan::FinishReason::kStop);
  EXPECT_EQ(scheduler_->Stats().rows_discarded, 1u);
}

TEST_F(SchedulerTest, EndTokenBeforeTokensMinDoesNotEndIt) {
  Make(SmallOptions());
  SequenceRequest request = Request(1, 10, 20);
  request.end_tokens = {7};
  request.tokens_min = 15;
  tokens_[{1, 12}] = 7;
  tokens_[{1, 14}] = 7;
  ASSERT_TRUE(scheduler_->Submit(request).ok());

  RunUntilIdle();

  EXPECT_THAT(IndicesOf(1), SizeIs(5));
  EXPECT_EQ(EndOf(1)->reason, plan::FinishReason::kStop);
}

TEST_F(SchedulerTest, FinishedSequenceLeavesWithAPlanOfItsOwnWhenNothingElseRuns) {
  Make(SmallOptions());
  ASSERT_TRUE(Submit(1, 10, 11).ok());
  Plan();
  StepDone();
  EXPECT_EQ(scheduler_->kv().SlotsQuarantined(0), 10u);
  EXPECT_TRUE(scheduler_->HasWork());

  const std::vector<plan::StepPlan> plans = Plan();

  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_THAT(plans[0].leaves, ElementsAre(plan::SequenceLeave{1}));
  EXPECT_THAT(plans[0].rows, IsEmpty());
  StepDone();
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 1000u);
  EXPECT_FALSE(scheduler_->HasWork());
}

TEST_F(SchedulerTest, FinishEndsWaitingAndRunningSequencesWithoutAnEvent) {
  SchedulerOptions options = SmallOptions();
  options.running_max = 1;
  Make(options);
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  ASSERT_TRUE(Submit(2, 10, 20).ok());
  Plan();

  scheduler_->Finish(1);
  scheduler_->Finish(2);
  scheduler_->Finish(3);
  RunUntilIdle();

  EXPECT_THAT(events_.tokens, IsEmpty());
  EXPECT_THAT(events_.finished, IsEmpty());
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 1000u);
}

// Two steps are planned when the client goes: the third has no more of it.
TEST_F(SchedulerTest, FinishFreesSlotsWithTheNextStepThatIsPlanned) {
  SchedulerOptions options = SmallOptions();
  options.plan_ahead = 2;
  Make(options);
  ASSERT_TRUE(Submit(1, 10, 50).ok());
  ASSERT_TRUE(Submit(2, 10, 50).ok());
  Plan();
  ASSERT_TRUE(StepDone());
  Plan();
  ASSERT_THAT(in_flight_, SizeIs(2));

  scheduler_->Finish(1);
  EXPECT_THAT(Plan(), IsEmpty());
  ASSERT_TRUE(StepDone());
  const std::vector<plan::StepPlan> plans = Plan();

  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_THAT(plans[0].leaves, ElementsAre(plan::SequenceLeave{1}));
  ASSERT_THAT(plans[0].rows, SizeIs(1));
  EXPECT_EQ(plans[0].rows[0].sequence, 2u);
  ASSERT_TRUE(StepDone());
  EXPECT_GT(scheduler_->kv().SlotsQuarantined(0), 0u);  // A row of it may have run until now.
  ASSERT_TRUE(StepDone());
  EXPECT_EQ(scheduler_->kv().SlotsQuarantined(0), 0u);
  scheduler_->Finish(2);
  RunUntilIdle();
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 1000u);
}

TEST_F(SchedulerTest, LastSubmittedIsPreemptedWhenSlotsRunOutAndNothingIsLostOrRepeated) {
  Make(SmallOptions(/*slots=*/60));
  ASSERT_TRUE(Submit(1, 20, 50).ok());
  ASSERT_TRUE(Submit(2, 20, 50).ok());

  RunUntilIdle();

  EXPECT_THAT(events_.preempted, testing::Contains(2));
  EXPECT_THAT(events_.preempted, testing::Not(testing::Contains(1)));
  for (const plan::SequenceId id : {1, 2}) {
    const std::vector<uint32_t> indices = IndicesOf(id);
    ASSERT_THAT(indices, SizeIs(30));
    for (uint32_t i = 0; i < 30; ++i) {
      EXPECT_EQ(indices[i], i);
    }
  }
  EXPECT_GT(joins_[2].tokens.size(), 20u);
  EXPECT_EQ(joins_[2].prompt_tokens, 20u);
  EXPECT_EQ(joins_[2].tokens.back(), static_cast<TokenId>(100 + joins_[2].tokens.size() - 1));
}

TEST_F(SchedulerTest, LowestPriorityIsPreemptedUnderThePriorityOrder) {
  Make(SmallOptions(/*slots=*/60), /*priority=*/true);
  ASSERT_TRUE(Submit(1, 20, 50).ok());
  SequenceRequest urgent = Request(2, 20, 50);
  urgent.priority = 1;
  ASSERT_TRUE(scheduler_->Submit(urgent).ok());

  RunUntilIdle();

  EXPECT_THAT(events_.preempted, testing::Contains(1));
  EXPECT_THAT(events_.preempted, testing::Not(testing::Contains(2)));
}

TEST_F(SchedulerTest, HigherPriorityIsServedFirst) {
  SchedulerOptions options = SmallOptions();
  options.running_max = 1;
  Make(options, /*priority=*/true);
  ASSERT_TRUE(Submit(1, 10, 12).ok());
  SequenceRequest urgent = Request(2, 10, 12);
  urgent.priority = 1;
  ASSERT_TRUE(scheduler_->Submit(urgent).ok());

  EXPECT_EQ(Plan().front().joins[0].id, 2u);
}

TEST_F(SchedulerTest, AdmissionLooksAtSlotsInUseNotAtTokensMax) {
  Make(SmallOptions(/*slots=*/127));
  ASSERT_TRUE(Submit(1, 10, 128).ok());
  ASSERT_TRUE(Submit(2, 10, 128).ok());

  EXPECT_THAT(Plan().front().joins, SizeIs(2));
}

TEST_F(SchedulerTest, ForksJoinWithTheirParentAndShareItsSlots) {
  Make(SmallOptions());
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  for (const plan::SequenceId id : {2, 3}) {
    SequenceRequest fork = Request(id, 10, 20);
    fork.fork_of = 1;
    ASSERT_TRUE(scheduler_->Submit(fork).ok());
  }

  const plan::StepPlan plan = Plan().front();

  ASSERT_THAT(plan.joins, SizeIs(3));
  EXPECT_EQ(plan.joins[1].parent, 1u);
  EXPECT_EQ(plan.allocations[1].extent, plan.allocations[0].extent);
  EXPECT_THAT(plan.chunks, SizeIs(1));
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 990u);
  RunUntilIdle();
  EXPECT_THAT(IndicesOf(3), SizeIs(10));
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 1000u);
}

TEST_F(SchedulerTest, ForkWhoseParentHasLeftIsAnOrdinarySequence) {
  Make(SmallOptions());
  ASSERT_TRUE(Submit(1, 10, 11).ok());
  RunUntilIdle();
  SequenceRequest fork = Request(2, 10, 20);
  fork.fork_of = 1;
  ASSERT_TRUE(scheduler_->Submit(fork).ok());

  EXPECT_EQ(Plan().front().joins[0].parent, 0u);
}

TEST_F(SchedulerTest, ForksOfAParentCancelledInPrefillArePrefilledOnTheirOwn) {
  SchedulerOptions options = SmallOptions();
  options.plan_ahead = 1;
  Make(options);
  ASSERT_TRUE(Submit(1, 40, 50).ok());
  SequenceRequest fork = Request(2, 40, 50);
  fork.fork_of = 1;
  ASSERT_TRUE(scheduler_->Submit(fork).ok());
  ASSERT_EQ(Plan().front().joins.size(), 2u);

  scheduler_->Finish(1);
  StepDone();
  EXPECT_THAT(Plan().front().leaves, ElementsAre(plan::SequenceLeave{1}, plan::SequenceLeave{2}));
  RunUntilIdle();

  EXPECT_EQ(joins_[2].parent, 0u);
  EXPECT_THAT(IndicesOf(2), SizeIs(10));
  EXPECT_THAT(IndicesOf(1), IsEmpty());
}

TEST_F(SchedulerTest, ScoreReportsEveryTokenOnceAndEnds) {
  Make(SmallOptions());
  SequenceRequest request = Request(1, 70, 0);
  request.score = true;
  ASSERT_TRUE(scheduler_->Submit(request).ok());

  RunUntilIdle();

  ASSERT_THAT(events_.scores, SizeIs(1));
  EXPECT_THAT(events_.scores[0].logprobs, SizeIs(69));
  EXPECT_EQ(EndOf(1)->reason, plan::FinishReason::kLength);
}

TEST_F(SchedulerTest, GivenTokensGoThroughDecodeStepsOneByOne) {
  SchedulerOptions options = SmallOptions();
  options.prompt_rows_max = 16;
  Make(options);
  SequenceRequest request = Request(1, 70, 0);
  request.score = true;
  request.decode_from = 50;
  ASSERT_TRUE(scheduler_->Submit(request).ok());

  uint32_t chunked = 0;
  std::vector<uint32_t> rows;  // Their positions.
  do {
    for (const plan::StepPlan& plan : Plan()) {
      EXPECT_LE(plan.rows.size(), 1u);
      for (const plan::PrefillChunk& chunk : plan.chunks) {
        chunked += chunk.tokens;
        EXPECT_FALSE(chunk.last);
      }
      for (const plan::DecodeRow& row : plan.rows) {
        rows.push_back(row.position);
      }
    }
  } while (StepDone());

  EXPECT_EQ(joins_[1].decode_from, 50u);
  EXPECT_EQ(chunked, 50u);
  ASSERT_THAT(rows, SizeIs(20));
  EXPECT_EQ(rows.front(), 50u);
  EXPECT_EQ(rows.back(), 69u);
  ASSERT_THAT(events_.scores, SizeIs(1));
  EXPECT_THAT(events_.scores[0].logprobs, SizeIs(69));
}

TEST_F(SchedulerTest, GivenTokensThatNoStepCanTakeAreRefused) {
  Make(SmallOptions());
  SequenceRequest request = Request(1, 70, 0);
  request.score = true;
  request.decode_from = 70;
  EXPECT_EQ(scheduler_->Submit(request).message(),
            "decode_from is 70 and the text has 70 tokens: none of them would go through a decode "
            "step");
  request.decode_from = 69;
  EXPECT_EQ(scheduler_->Submit(request).code(), absl::StatusCode::kUnimplemented);
}

TEST_F(SchedulerTest, OneRequestAtATimeUsesLaneZeroOnly) {
  SchedulerOptions options = SmallOptions();
  options.lanes = 3;
  Make(options);
  for (plan::SequenceId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(Submit(id, 10, 20).ok());
    RunUntilIdle();
  }

  const SchedulerStats stats = scheduler_->Stats();
  EXPECT_GT(stats.lanes[0].step_done, 0u);
  EXPECT_EQ(stats.lanes[1].step_done + stats.lanes[2].step_done, 0u);
}

TEST_F(SchedulerTest, ABurstIsSpreadOverTheLanes) {
  SchedulerOptions options = SmallOptions();
  options.lanes = 2;
  Make(options);
  for (plan::SequenceId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(Submit(id, 10, 20).ok());
  }

  Plan();

  EXPECT_EQ(scheduler_->Stats().lanes[0].rows, 2u);
  EXPECT_EQ(scheduler_->Stats().lanes[1].rows, 2u);
}

// Lanes of equal work open their steps one after the other, and each has just grown when it does:
// a newcomer must not wait for ever for the other one.
TEST_F(SchedulerTest, NewcomersJoinWhileEqualLanesTakeTurns) {
  SchedulerOptions options = SmallOptions();
  options.lanes = 2;
  Make(options);
  ASSERT_TRUE(Submit(1, 32, 90).ok());
  ASSERT_TRUE(Submit(2, 32, 90).ok());
  Plan();
  for (uint32_t turn = 0; turn < 10; ++turn) {
    ASSERT_TRUE(StepDoneOf(turn % 2));
    Plan();
  }
  for (const plan::SequenceId id : {3, 4, 5}) {
    ASSERT_TRUE(Submit(id, 32, 90).ok());
  }
  std::map<uint32_t, int> joined;
  for (uint32_t turn = 0; turn < 12; ++turn) {
    for (const plan::StepPlan& plan : Plan()) {
      joined[plan.lane] += static_cast<int>(plan.joins.size());
    }
    ASSERT_TRUE(StepDoneOf(turn % 2));
  }
  EXPECT_EQ(joined[0] + joined[1], 3);
  EXPECT_LE(std::abs(joined[0] - joined[1]), 1);
}

TEST_F(SchedulerTest, ANewEpochContinuesWhatWasRunningWhereverItsKvWas) {
  SchedulerOptions options = SmallOptions();
  options.memory_nodes.push_back({.name = "b", .slots = 1000, .bandwidth_bytes_per_second = 1});
  Make(options);
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  ASSERT_TRUE(Submit(2, 10, 20).ok());
  Plan();
  StepDone();
  ASSERT_NE(joins_[1].memory_node, joins_[2].memory_node);
  const plan::StepPlan stale = Plan().front();

  scheduler_->StartEpoch(5, {options.memory_nodes[0]}, {"b"}, events_);
  in_flight_.clear();

  EXPECT_THAT(events_.finished, SizeIs(0));
  EXPECT_TRUE(scheduler_->OnStepDone(Answer(stale), events_).ok());
  const plan::StepPlan first = Plan().front();
  EXPECT_EQ(first.epoch, 5u);
  EXPECT_EQ(first.step, 1u);
  ASSERT_THAT(first.joins, SizeIs(2));
  EXPECT_THAT(first.joins[0].tokens, SizeIs(11));
  EXPECT_THAT(first.joins[1].tokens, SizeIs(11));
  RunUntilIdle();
  EXPECT_THAT(IndicesOf(1), SizeIs(10));
  EXPECT_THAT(IndicesOf(2), SizeIs(10));
}

TEST_F(SchedulerTest, AThirdLossWithoutATokenBetweenEndsWhatWasRunning) {
  SchedulerOptions options = SmallOptions();
  options.running_max = 1;
  Make(options);
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  ASSERT_TRUE(Submit(2, 10, 20).ok());  // Waits all the time, so that no loss is its own.
  const auto lose = [&](uint64_t epoch, const std::vector<std::string>& lost) {
    Plan();
    scheduler_->StartEpoch(epoch, options.memory_nodes, lost, events_);
    in_flight_.clear();
  };
  lose(1, {"m1"});
  lose(2, {"c0", "m2"});
  lose(3, {});  // An epoch of the same nodes is no loss.
  EXPECT_EQ(EndOf(1), nullptr);

  lose(4, {"m3"});

  ASSERT_NE(EndOf(1), nullptr);
  EXPECT_EQ(EndOf(1)->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(EndOf(1)->status.message()), HasSubstr("(m1, then c0 and m2, then m3)"));
  EXPECT_EQ(EndOf(2), nullptr);
  RunUntilIdle();
  EXPECT_THAT(IndicesOf(2), SizeIs(10));
}

TEST_F(SchedulerTest, ATokenBetweenLossesForgivesThem) {
  Make(SmallOptions());
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  for (uint64_t epoch = 1; epoch <= 8; ++epoch) {
    Plan();
    if (epoch % 2 == 0) {
      StepDone();
    }
    scheduler_->StartEpoch(epoch, SmallOptions().memory_nodes, {"m1"}, events_);
    in_flight_.clear();
  }
  RunUntilIdle();
  EXPECT_THAT(IndicesOf(1), SizeIs(10));
}

TEST_F(SchedulerTest, ANewEpochEndsWhatNoNodeCouldHoldAnyMore) {
  Make(SmallOptions(/*slots=*/100));
  ASSERT_TRUE(Submit(1, 10, 90).ok());

  scheduler_->StartEpoch(1, {{.name = "c", .slots = 50}}, {}, events_);

  EXPECT_EQ(EndOf(1)->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(scheduler_->HasWork());
}

TEST_F(SchedulerTest, FailAllEndsEverythingWithTheStatus) {
  SchedulerOptions options = SmallOptions();
  options.running_max = 1;
  Make(options);
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  ASSERT_TRUE(Submit(2, 10, 20).ok());
  Plan();

  scheduler_->FailAll(absl::UnavailableError("gone"), events_);

  ASSERT_THAT(events_.finished, SizeIs(2));
  EXPECT_EQ(EndOf(1)->status, absl::UnavailableError("gone"));
  EXPECT_EQ(EndOf(2)->reason, plan::FinishReason::kError);
  RunUntilIdle();
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 1000u);
}

TEST_F(SchedulerTest, ASequenceThatComesWithTokensGoesOnBehindThem) {
  Make(SmallOptions());
  SequenceRequest request = Request(1, 10, 14);
  request.generated = {110, 111};
  ASSERT_TRUE(scheduler_->Submit(request).ok());
  const plan::SequenceJoin join = Plan().at(0).joins.at(0);
  EXPECT_EQ(join.prompt_tokens, 10u);
  ASSERT_THAT(join.tokens, SizeIs(12));
  EXPECT_EQ(join.tokens[10], 110);
  EXPECT_EQ(join.tokens[11], 111);
  EXPECT_EQ(join.cached_tokens, 0u);

  RunUntilIdle();

  EXPECT_THAT(IndicesOf(1), ElementsAre(2, 3));
  EXPECT_EQ(events_.tokens[0].token.token, 112);
  ASSERT_NE(EndOf(1), nullptr);
  EXPECT_EQ(EndOf(1)->reason, plan::FinishReason::kLength);
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 1000u);
}

TEST_F(SchedulerTest, NamesOfTheOrders) {
  EXPECT_EQ(MakeFirstComeFirstServed()->name(), "fcfs");
  EXPECT_EQ(MakePriorityOrder()->name(), "priority");
}

}  // namespace
}  // namespace lamina::core
