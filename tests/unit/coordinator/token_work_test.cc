// SPDX-License-Identifier: Apache-2.0
#include "coordinator/token_work.h"

#include "gtest/gtest.h"

namespace lamina::coordinator {
namespace {

constexpr plan::SequenceId kA = 7;
constexpr plan::SequenceId kB = 8;

plan::SequenceJoin JoinOf(plan::SequenceId id, uint32_t tokens, uint32_t cached = 0) {
  plan::SequenceJoin join{.id = id, .prompt_tokens = tokens, .cached_tokens = cached};
  join.tokens.resize(tokens);
  return join;
}

plan::StepPlan Rows(plan::SequenceId id, uint32_t first, uint32_t count) {
  plan::StepPlan plan{.epoch = 1};
  for (uint32_t i = 0; i < count; ++i) {
    plan.rows.push_back({.sequence = id, .position = first + i});
  }
  return plan;
}

TEST(TokenWorkTest, SharesSlicesByTheMeasuredLine) {
  TokenWork work(3);
  plan::StepPlan plan = Rows(kA, 100, 8);
  plan.chunks = {{.sequence = kB, .tokens = 100}};
  work.Add(plan, false);  // Nothing is measured yet.
  work.SetTimes({.slice = {.fixed = 2, .slope = 0.5}});
  work.Add(plan, false);
  work.Add(Rows(kA, 108, 4), false);
  plan.rows.clear();
  work.Add(plan, true);

  EXPECT_EQ(work.input_tokens(), 300u);
  EXPECT_DOUBLE_EQ(work.work().compute.input, 3 * (1 + 50));
  EXPECT_DOUBLE_EQ(work.work().compute.output, 3 * (1 + 4 + (2 + 2)));
  EXPECT_EQ(work.work().memory.output, 0);
}

// A prompt of 40 tokens, 32 of which are found, comes as rows: each attends to those, to the ones
// computed before it, and to itself. Memory nodes read the 40 tokens once for all of them.
TEST(TokenWorkTest, RowsOfPromptsAreInputAndWhatTheyFindIsCached) {
  TokenWork work(1);
  work.SetTimes({.slice = {.slope = 1}, .attention = {.slope = 1}, .memory_nodes = 2});
  plan::StepPlan plan = Rows(kA, 32, 8);
  plan.joins = {JoinOf(kA, 40, 32)};
  work.Add(plan, false);
  work.Add(Rows(kA, 40, 1), false);

  EXPECT_EQ(work.input_tokens(), 8u);
  EXPECT_EQ(work.cached_tokens(), 32u);
  EXPECT_DOUBLE_EQ(work.work().compute.input, 8);
  EXPECT_DOUBLE_EQ(work.work().compute.output, 1);
  const double found = 8 * 32;
  const double computed = 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8;
  EXPECT_NEAR(work.work().memory.cached, 40 / 2.0 * found / (found + computed), 1e-9);
  EXPECT_NEAR(work.work().memory.input, 40 / 2.0 * computed / (found + computed), 1e-9);
  EXPECT_DOUBLE_EQ(work.work().memory.output, 41 / 2.0);
}

// A slice of 9 rows takes 90 s. Attention is 50 s of it: 8 rows of a prompt of 40 tokens, 32 of
// which are found, read 40 tokens together, and an answer's row reads 60.
TEST(TokenWorkTest, ComputeNodesThatHoldKvAttendToFoundTokensForTheCached) {
  TokenWork work(2);
  work.SetTimes({.slice = {.slope = 10}, .attention = {.slope = 0.5}});
  plan::StepPlan plan = Rows(kA, 32, 8);
  plan.joins = {JoinOf(kA, 40, 32)};
  plan.rows.push_back({.sequence = kB, .position = 59});
  work.Add(plan, false);

  const double found = 8 * 32;
  const double computed = 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8;
  const cost::Work compute = work.work().compute;
  EXPECT_NEAR(compute.cached, 2 * 20 * found / (found + computed), 1e-9);
  EXPECT_NEAR(compute.input, 2 * (40 * 8 / 9.0 + 20 * computed / (found + computed)), 1e-9);
  EXPECT_NEAR(compute.output, 2 * (40 / 9.0 + 30), 1e-9);
  EXPECT_NEAR(compute.input + compute.cached + compute.output, 2 * 90, 1e-9);
  work.Hold(0.5, true, Seconds(1));
  EXPECT_NEAR(work.work().compute.cached - compute.cached, 0.5 * 2 * 90, 1e-9);
  // No attention takes longer than the slice that it is part of.
  work.SetTimes({.slice = {.slope = 10}, .attention = {.slope = 100}});
  work.Add(Rows(kB, 60, 1), false);
  EXPECT_NEAR(work.work().compute.output - compute.output, 2 * 10, 1e-9);
}

// A beam, or one that was preempted, joins with 30 tokens of a prompt and 10 of its answer. The
// last of these was never an input.
TEST(TokenWorkTest, WhatJoinsAgainGoesOnWithARowOfItsAnswer) {
  plan::SequenceJoin join = JoinOf(kA, 40);
  join.prompt_tokens = 30;
  for (const uint32_t first : {39u, 35u}) {  // K and V of so many tokens are there.
    SCOPED_TRACE(first);
    TokenWork work(1);
    work.SetTimes({.slice = {.slope = 1}, .attention = {.slope = 1}, .memory_nodes = 2});
    plan::StepPlan plan = Rows(kA, first, 40 - first);
    plan.joins = {join};
    work.Add(plan, false);

    EXPECT_EQ(work.input_tokens(), 39 - first);
    EXPECT_EQ(work.cached_tokens(), 0u);
    EXPECT_DOUBLE_EQ(work.work().compute.input, 39 - first);
    EXPECT_DOUBLE_EQ(work.work().compute.output, 1);
    EXPECT_DOUBLE_EQ(work.work().memory.output, 40 / 2.0) << "which it reads for all of them";
    EXPECT_EQ(work.work().memory.input, 0);
    EXPECT_EQ(work.work().memory.cached, 0);
  }
}

// One that was preempted in the middle of its prompt finds what it had itself.
TEST(TokenWorkTest, RowsBehindWhatASequenceHadItselfAreInputAlone) {
  TokenWork work(1);
  work.SetTimes({.slice = {.slope = 1}, .attention = {.slope = 1}, .memory_nodes = 1});
  plan::StepPlan plan = Rows(kA, 32, 8);
  plan.joins = {JoinOf(kA, 40)};
  work.Add(plan, false);
  EXPECT_EQ(work.input_tokens(), 8u);
  EXPECT_EQ(work.cached_tokens(), 0u);
  EXPECT_EQ(work.work().memory.cached, 0);
  EXPECT_DOUBLE_EQ(work.work().memory.input, 40);
}

TEST(TokenWorkTest, ASequenceThatLeftOrAnEpochThatEndedIsForgotten) {
  TokenWork work(1);
  plan::StepPlan join = Rows(kA, 0, 4);
  join.joins = {JoinOf(kA, 10)};
  work.Add(join, false);
  EXPECT_EQ(work.input_tokens(), 4u);
  plan::StepPlan leave = Rows(kA, 5, 1);
  leave.leaves = {{.id = kA}};
  work.Add(leave, false);  // A discarded row.
  EXPECT_EQ(work.input_tokens(), 4u);
  work.Add(join, false);
  plan::StepPlan next = Rows(kA, 5, 1);
  next.epoch = 2;
  work.Add(next, false);
  EXPECT_EQ(work.input_tokens(), 8u);
}

TEST(TokenWorkTest, KeptPrefixesHaveTheirShareOfWhatWasDoneMeanwhile) {
  TokenWork work(1);
  work.SetTimes({.slice = {.slope = 1}, .attention = {.slope = 1}, .memory_nodes = 1});
  work.Add(Rows(kA, 99, 1), false);
  work.Hold(0.5, false, Seconds(10));
  EXPECT_DOUBLE_EQ(work.work().memory.cached, 50);
  work.Hold(0.5, false, Seconds(11));  // Nothing was done.
  EXPECT_DOUBLE_EQ(work.work().memory.cached, 50);
  work.Add(Rows(kA, 100, 1), false);
  work.Hold(0.5, true, Seconds(12));
  EXPECT_DOUBLE_EQ(work.work().compute.cached, 0.5);
  EXPECT_DOUBLE_EQ(work.work().memory.cached, 50);
}

}  // namespace
}  // namespace lamina::coordinator
