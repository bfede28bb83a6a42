// SPDX-License-Identifier: Apache-2.0
//
// Every error that Scheduler and SchedulerOptions promise.

#include <gmock/gmock.h>

#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

using testing::HasSubstr;

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& words) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

class SchedulerLimitsTest : public SchedulerTest {};

TEST_F(SchedulerLimitsTest, EmptyPromptIsRefused) {
  Make(SmallOptions());
  ExpectError(Submit(1, 0, 10), absl::StatusCode::kInvalidArgument, "the prompt is empty");
}

TEST_F(SchedulerLimitsTest, PromptBeyondTheLimitIsRefusedWithBothNumbers) {
  Make(SmallOptions());
  ExpectError(Submit(1, 128, 128), absl::StatusCode::kInvalidArgument,
              "the prompt has 128 tokens, the limit is 127");
}

TEST_F(SchedulerLimitsTest, TokensMaxBeyondTheLimitIsRefusedWithBothNumbers) {
  Make(SmallOptions());
  ExpectError(Submit(1, 10, 129), absl::StatusCode::kInvalidArgument,
              "tokens_max is 129, the limit is 128");
}

TEST_F(SchedulerLimitsTest, TokensMaxThatLeavesNothingToGenerateIsRefused) {
  Make(SmallOptions());
  ExpectError(Submit(1, 10, 10), absl::StatusCode::kInvalidArgument, "nothing is left to generate");
}

TEST_F(SchedulerLimitsTest, RequestThatNoMemoryNodeCouldHoldIsRefusedWithTheNumbers) {
  Make(SmallOptions(/*slots=*/50));
  ExpectError(Submit(1, 10, 52), absl::StatusCode::kInvalidArgument,
              "can grow to 51 slots (prompt 10, tokens_max 52), the largest memory node has 50");
  EXPECT_TRUE(Submit(2, 10, 51).ok());
}

TEST_F(SchedulerLimitsTest, FullQueueIsResourceExhaustedAndSaysTheLimit) {
  SchedulerOptions options = SmallOptions();
  options.waiting_max = 2;
  Make(options);
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  ASSERT_TRUE(Submit(2, 10, 20).ok());
  ExpectError(Submit(3, 10, 20), absl::StatusCode::kResourceExhausted, "2 sequences wait");

  Plan();

  EXPECT_TRUE(Submit(3, 10, 20).ok());
}

TEST_F(SchedulerLimitsTest, FullQueueTakesWhatAnotherCoordinatorHadAccepted) {
  SchedulerOptions options = SmallOptions();
  options.waiting_max = 1;
  options.running_max = 1;
  Make(options);
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  for (plan::SequenceId id = 2; id < 5; ++id) {
    SequenceRequest request = Request(id, 10, 20);
    request.accepted_before = true;
    EXPECT_TRUE(scheduler_->Submit(request).ok());
  }
  ExpectError(Submit(5, 10, 20), absl::StatusCode::kResourceExhausted, "1 sequences wait");
  EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(4).size(), 10u);
}

TEST_F(SchedulerLimitsTest, SubmitWithoutMemoryNodesIsUnavailable) {
  SchedulerOptions options = SmallOptions();
  options.memory_nodes.clear();
  Make(options);
  ExpectError(Submit(1, 10, 20), absl::StatusCode::kUnavailable, "no memory node");
}

TEST_F(SchedulerLimitsTest, ResultOfAnUnexpectedStepIsInternal) {
  Make(SmallOptions());
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  plan::StepResult result = Answer(Plan().front());
  result.step = 2;
  ExpectError(scheduler_->OnStepDone(result, events_), absl::StatusCode::kInternal,
              "step 1 is next");
  result.lane = 9;
  ExpectError(scheduler_->OnStepDone(result, events_), absl::StatusCode::kInternal, "no such lane");
}

TEST_F(SchedulerLimitsTest, ResultWithWrongRowsIsInternalAndChangesNothing) {
  Make(SmallOptions());
  ASSERT_TRUE(Submit(1, 10, 20).ok());
  const plan::StepResult right = Answer(Plan().front());
  plan::StepResult missing = right;
  missing.tokens.clear();
  plan::StepResult unplanned = right;
  unplanned.tokens[0].sequence = 7;
  plan::StepResult doubled = right;
  doubled.tokens.push_back(right.tokens[0]);
  plan::StepResult moved = right;
  ++moved.tokens[0].position;
  plan::StepResult scored = right;
  scored.scores.push_back({.sequence = 1, .first_token = 1, .logprobs = {-1.0f}});

  ExpectError(scheduler_->OnStepDone(missing, events_), absl::StatusCode::kInternal, "no token");
  ExpectError(scheduler_->OnStepDone(unplanned, events_), absl::StatusCode::kInternal, "no row");
  ExpectError(scheduler_->OnStepDone(doubled, events_), absl::StatusCode::kInternal, "two tokens");
  ExpectError(scheduler_->OnStepDone(moved, events_), absl::StatusCode::kInternal, "position 10");
  ExpectError(scheduler_->OnStepDone(scored, events_), absl::StatusCode::kInternal, "not scored");
  EXPECT_TRUE(events_.tokens.empty());
  EXPECT_TRUE(scheduler_->OnStepDone(right, events_).ok());
}

TEST_F(SchedulerLimitsTest, ScoreWithGapsOrTooManyPartsIsInternal) {
  Make(SmallOptions());
  SequenceRequest request = Request(1, 10, 0);
  request.score = true;
  ASSERT_TRUE(scheduler_->Submit(request).ok());
  const plan::StepResult right = Answer(Plan().front());
  plan::StepResult gap = right;
  gap.scores[0].first_token = 2;
  plan::StepResult more = right;
  more.scores[0].logprobs.resize(10);
  plan::StepResult fewer = right;
  fewer.scores[0].logprobs.resize(8);

  ExpectError(scheduler_->OnStepDone(gap, events_), absl::StatusCode::kInternal, "begins at 2");
  ExpectError(scheduler_->OnStepDone(more, events_), absl::StatusCode::kInternal, "fewer tokens");
  plan::StepResult ranked = right;
  ranked.scores[0].ranks.resize(9);
  ExpectError(scheduler_->OnStepDone(fewer, events_), absl::StatusCode::kInternal, "lacks");
  ExpectError(scheduler_->OnStepDone(ranked, events_), absl::StatusCode::kInternal, "9 ranks");
  EXPECT_TRUE(scheduler_->OnStepDone(right, events_).ok());
}

uint64_t TokensOfJoins(const plan::StepPlan& plan) {
  uint64_t tokens = 0;
  for (const plan::SequenceJoin& join : plan.joins) {
    tokens += join.tokens.size();
  }
  return tokens;
}

TEST_F(SchedulerLimitsTest, APlanBringsNoMoreTokensThanNodesReceive) {
  SchedulerOptions options = SmallOptions();
  options.join_tokens_max = 25;
  Make(options);
  for (const plan::SequenceId id : {1, 2, 3}) {
    ASSERT_TRUE(Submit(id, 10, 14).ok());
  }
  ASSERT_TRUE(Submit(4, 40, 44).ok());  // Alone it may be longer.
  ASSERT_TRUE(Submit(5, 10, 14).ok());
  size_t joined = 0;
  do {
    for (const plan::StepPlan& plan : Plan()) {
      EXPECT_TRUE(plan.joins.size() <= 1 || TokensOfJoins(plan) <= 25) << plan.joins.size();
      joined += plan.joins.size();
    }
  } while (StepDone());
  EXPECT_EQ(joined, 5u);
  EXPECT_FALSE(scheduler_->HasWork());
}

TEST_F(SchedulerLimitsTest, ForksThatDoNotFitThePlanOfTheirParentJoinLater) {
  SchedulerOptions options = SmallOptions();
  options.join_tokens_max = 25;
  Make(options);
  ASSERT_TRUE(Submit(1, 10, 14).ok());
  for (const plan::SequenceId id : {2, 3, 4}) {
    SequenceRequest fork = Request(id, 10, 14);
    fork.fork_of = 1;
    ASSERT_TRUE(scheduler_->Submit(fork).ok());
  }

  const std::vector<plan::StepPlan> plans = Plan();

  ASSERT_FALSE(plans.empty());
  ASSERT_EQ(plans[0].joins.size(), 2u);
  EXPECT_EQ(plans[0].joins[1].parent, 1u);
  for (const plan::StepPlan& plan : plans) {
    EXPECT_LE(TokensOfJoins(plan), 25u);
  }
  while (StepDone()) {
    for (const plan::StepPlan& plan : Plan()) {
      EXPECT_LE(TokensOfJoins(plan), 25u);
    }
  }
  for (const plan::SequenceId id : {1, 2, 3, 4}) {
    EXPECT_EQ(IndicesOf(id), (std::vector<uint32_t>{0, 1, 2, 3})) << id;
  }
  EXPECT_FALSE(scheduler_->HasWork());
}

TEST(SchedulerOptionsTest, ValidateNamesWhatIsWrong) {
  EXPECT_TRUE(SmallOptions().Validate().ok());
  SchedulerOptions options = SmallOptions();
  options.scratch_tokens = 100;
  EXPECT_TRUE(options.Validate().ok());
  options.prefill_lanes = {.replicas = 1, .each = 1};
  ExpectError(options.Validate(), absl::StatusCode::kInvalidArgument,
              "sequence_tokens_max is 128, more than scratch_tokens 100");
  for (uint32_t SchedulerOptions::*field :
       {&SchedulerOptions::lanes, &SchedulerOptions::plan_ahead, &SchedulerOptions::rows_max,
        &SchedulerOptions::step_tokens_max, &SchedulerOptions::chunk_tokens,
        &SchedulerOptions::scratch_tokens, &SchedulerOptions::sequence_tokens_max,
        &SchedulerOptions::running_max}) {
    options = SmallOptions();
    options.*field = 0;
    ExpectError(options.Validate(), absl::StatusCode::kInvalidArgument, "is 0; at least 1");
  }
}

}  // namespace
}  // namespace lamina::core
