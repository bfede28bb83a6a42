// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler makes of a prefix that is kept: who waits for it, where newcomers go, and how
// fast the rest of their prompts gets on.

#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

class SchedulerPrefixTest : public SchedulerTest {
 protected:
  static SchedulerOptions Keeping() {
    SchedulerOptions options = SmallOptions();
    options.prefix_cache = true;
    options.plan_ahead = 1;
    return options;
  }

  // The plan in which the sequence joins, after as many steps as that takes.
  plan::StepPlan PlanOfJoin(plan::SequenceId id) {
    for (int i = 0; i < 100; ++i) {
      for (const plan::StepPlan& plan : Plan()) {
        for (const plan::SequenceJoin& join : plan.joins) {
          if (join.id == id) {
            return plan;
          }
        }
      }
      StepDone();
    }
    ADD_FAILURE() << "sequence " << id << " does not join";
    return {};
  }

  static uint32_t RowsOf(const plan::StepPlan& plan, plan::SequenceId id) {
    return static_cast<uint32_t>(
        std::count_if(plan.rows.begin(), plan.rows.end(),
                      [id](const plan::DecodeRow& row) { return row.sequence == id; }));
  }
};

// Its tier has them no more, and the epoch ends before it has its next token.
TEST_F(SchedulerPrefixTest, WhatHasJustComeBackFromATierIsNotComputedAgain) {
  SchedulerOptions options = Keeping();
  options.strategies.out_of_slots = MakeSpillLast;
  MemoryNodeShare& node = options.memory_nodes[0];
  node.slots = 100;
  node.arena = 1;
  node.spill = {
      .blocks = 8,
      .rates = {
          .write_bytes_per_second = 1e9, .read_bytes_per_second = 1e9, .bytes_per_token = 1000}};
  Make(options);
  for (const plan::SequenceId id : {1, 2}) {  // They run out of slots together.
    SequenceRequest request = Request(id, 40, 90);
    request.cache_salt = std::to_string(id);
    ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
  }
  bool is_back = false;
  for (int i = 0; i < 200 && !is_back; ++i) {
    StepDone();
    for (const plan::StepPlan& plan : Plan()) {
      for (const plan::SpillOut& out : plan.spills_out) {
        scheduler_->OnSpilled({.epoch = plan.epoch, .spill = out.spill, .ok = true});
      }
      for (const plan::SpillIn& in : plan.spills_in) {
        EXPECT_EQ(in.sequence, 2u);
        scheduler_->OnSpilled({.epoch = plan.epoch, .spill = in.spill, .ok = true});
        is_back = true;
      }
    }
  }
  ASSERT_TRUE(is_back);
  in_flight_.clear();
  scheduler_->StartEpoch(1, options.memory_nodes, {}, events_);
  scheduler_->SetArenas({node.arena});
  const plan::StepPlan plan = PlanOfJoin(2);
  EXPECT_TRUE(plan.chunks.empty());
  ASSERT_EQ(plan.rows.size(), 1u);
  EXPECT_EQ(plan.rows[0].position + 1, joins_[2].tokens.size());
  EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
}

TEST_F(SchedulerPrefixTest, TheRestOfAPromptIsRowsAndTheLastOneSamples) {
  Make(Keeping());
  ASSERT_TRUE(Submit(1, 40, 42).ok());
  RunUntilIdle();
  ASSERT_TRUE(Submit(2, 45, 48).ok());
  const plan::StepPlan plan = PlanOfJoin(2);
  EXPECT_TRUE(plan.chunks.empty());
  ASSERT_EQ(plan.rows.size(), 13u);  // Behind two blocks of 16.
  EXPECT_EQ(plan.rows.front().position, 32u);
  EXPECT_EQ(plan.rows.back().position, 44u);
  EXPECT_FALSE(plan.chunking.query_first);
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(2), (std::vector<uint32_t>{0, 1, 2}));
}

// The epoch ends in the middle of its prompt, and again in its answer: it joins with what it had.
TEST_F(SchedulerPrefixTest, WhatASequenceFindsCountsWhenItJoinsForTheFirstTime) {
  SchedulerOptions options = Keeping();
  options.memory_nodes[0].arena = 1;
  Make(options);
  ASSERT_TRUE(Submit(1, 40, 42).ok());
  RunUntilIdle();
  ASSERT_TRUE(Submit(2, 100, 110).ok());
  PlanOfJoin(2);
  EXPECT_EQ(joins_[2].cached_tokens, 32u);
  StepDone();
  for (const uint64_t epoch : {1, 2}) {
    SCOPED_TRACE(epoch);
    in_flight_.clear();
    scheduler_->StartEpoch(epoch, options.memory_nodes, {}, events_);
    scheduler_->SetArenas({1});
    const plan::StepPlan plan = PlanOfJoin(2);
    ASSERT_FALSE(plan.rows.empty());
    EXPECT_GE(plan.rows.front().position, 32u) << "it finds as much";
    EXPECT_EQ(joins_[2].cached_tokens, 0u);
    const uint32_t sampled_last = IndicesOf(2).empty() ? 0 : 1;
    EXPECT_EQ(sampled_last, epoch - 1);
    EXPECT_EQ(joins_[2].input_tokens() + sampled_last, joins_[2].tokens.size());
    for (int i = 0; i < 50 && IndicesOf(2).size() < 3; ++i) {
      StepDone();
      Plan();
    }
  }
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(2).size(), 10u);
}

// Answers to the same prompt join with what the first of them finds.
TEST_F(SchedulerPrefixTest, WhatForksFindIsTheirParents) {
  Make(Keeping());
  ASSERT_TRUE(Submit(1, 40, 42).ok());
  RunUntilIdle();
  ASSERT_TRUE(Submit(2, 45, 48).ok());
  SequenceRequest fork = Request(3, 45, 48);
  fork.fork_of = 2;
  ASSERT_TRUE(scheduler_->Submit(std::move(fork)).ok());
  PlanOfJoin(3);
  EXPECT_EQ(joins_[3].parent, 2u);
  EXPECT_EQ(joins_[2].cached_tokens, 32u);
  EXPECT_EQ(joins_[3].cached_tokens, 0u);
}

// The second one needs nothing while the first one computes what both have.
TEST_F(SchedulerPrefixTest, WhoWaitsForTheSamePromptLetsOthersPass) {
  SchedulerOptions options = Keeping();
  options.lanes = 2;
  options.step_tokens_max = 32;
  Make(options);
  ASSERT_TRUE(Submit(1, 100, 120).ok());
  ASSERT_TRUE(Submit(2, 100, 120).ok());
  SequenceRequest other = Request(3, 5, 10);
  other.cache_salt = "other";
  ASSERT_TRUE(scheduler_->Submit(std::move(other)).ok());
  PlanOfJoin(3);
  EXPECT_TRUE(joins_.contains(1));
  EXPECT_FALSE(joins_.contains(2));
  EXPECT_TRUE(IndicesOf(1).empty()) << "its prompt is not done";
  RunUntilIdle();
  for (const plan::SequenceId id : {1, 2}) {
    EXPECT_EQ(IndicesOf(id).size(), 20u) << id;
  }
}

TEST_F(SchedulerPrefixTest, ASuffixGetsOnWithAFullLane) {
  for (const uint32_t prompt_rows_max : {0u, 24u}) {
    SCOPED_TRACE(prompt_rows_max);
    SchedulerOptions options = Keeping();
    options.rows_max = 4;
    options.prompt_rows_max = prompt_rows_max;
    Make(options);
    events_ = {};
    ASSERT_TRUE(Submit(1, 40, 42).ok());
    RunUntilIdle();
    for (plan::SequenceId id = 2; id <= 4; ++id) {
      ASSERT_TRUE(Submit(id, 2, 100).ok());
    }
    for (int i = 0; i < 4; ++i) {
      Plan();
      StepDone();
    }
    ASSERT_TRUE(Submit(5, 60, 64).ok());
    const plan::StepPlan plan = PlanOfJoin(5);
    EXPECT_EQ(RowsOf(plan, 5), 1 + prompt_rows_max);
    EXPECT_EQ(plan.rows.size(), 4 + prompt_rows_max);
    RunUntilIdle();
    EXPECT_EQ(IndicesOf(5), (std::vector<uint32_t>{0, 1, 2, 3}));
  }
}

TEST_F(SchedulerPrefixTest, ANewcomerWaitsForMostOfItsPromptAndNotForLittle) {
  Make(Keeping());
  ASSERT_TRUE(Submit(1, 96, 100).ok());  // Three chunks.
  SequenceRequest alike = Request(2, 100, 110);
  SequenceRequest other = Request(3, 100, 110);
  std::fill(other.prompt.begin() + 16, other.prompt.end(), 6);  // One block in common.
  ASSERT_EQ(Plan().at(0).joins.size(), 1u);
  ASSERT_TRUE(scheduler_->Submit(other).ok());
  StepDone();
  EXPECT_EQ(Plan().at(0).joins.size(), 1u);
  ASSERT_TRUE(scheduler_->Submit(alike).ok());
  StepDone();
  EXPECT_TRUE(Plan().at(0).joins.empty());
  const plan::StepPlan plan = PlanOfJoin(2);
  EXPECT_EQ(IndicesOf(1).empty(), false);  // Its prompt is done.
  EXPECT_EQ(plan.rows.back().position - RowsOf(plan, 2) + 1, 96u);
  RunUntilIdle();
}

TEST_F(SchedulerPrefixTest, NewcomersGoWhereTheirPrefixIsUnlessThatIsCrowded) {
  SchedulerOptions options = Keeping();
  options.memory_nodes.push_back({.name = "b", .slots = 1000, .bandwidth_bytes_per_second = 1});
  Make(options);
  ASSERT_TRUE(Submit(1, 100, 102).ok());
  RunUntilIdle();
  const uint32_t keeper = joins_[1].memory_node;
  for (plan::SequenceId id = 2; id <= 4; ++id) {
    ASSERT_TRUE(Submit(id, 100, 120).ok());
  }
  PlanOfJoin(4);
  EXPECT_EQ(joins_[2].memory_node, keeper);
  EXPECT_EQ(joins_[3].memory_node, keeper);  // Twice as long as on the other one, no more.
  EXPECT_NE(joins_[4].memory_node, keeper);
  RunUntilIdle();
}

// Sequences in spans of two blocks, over three nodes.
class SchedulerCutPrefixTest : public SchedulerPrefixTest {
 protected:
  static SchedulerOptions Cut(uint32_t slots) {
    SchedulerOptions options = Keeping();
    options.span_tokens = 32;
    options.memory_nodes.clear();
    for (const char* name : {"a", "b", "c"}) {
      options.memory_nodes.push_back(
          {.name = name, .slots = slots, .bandwidth_bytes_per_second = 1});
    }
    return options;
  }
  // Node and slot of each token that the plan allocates.
  static std::vector<std::pair<uint32_t, uint32_t>> SlotsIn(const plan::StepPlan& plan,
                                                            plan::SequenceId id) {
    std::vector<std::pair<uint32_t, uint32_t>> slots;
    for (const plan::SlotAllocation& allocation : plan.allocations) {
      for (uint32_t i = 0; allocation.sequence == id && i < allocation.extent.tokens; ++i) {
        slots.emplace_back(allocation.memory_node, allocation.extent.first_slot + i);
      }
    }
    return slots;
  }
};

TEST_F(SchedulerCutPrefixTest, SpansAreSharedWhereTheyLieAndTheRestIsRows) {
  Make(Cut(200));
  ASSERT_TRUE(Submit(1, 90, 100).ok());
  const auto first = SlotsIn(PlanOfJoin(1), 1);
  RunUntilIdle();
  ASSERT_TRUE(Submit(2, 95, 100).ok());
  const plan::StepPlan plan = PlanOfJoin(2);
  const auto second = SlotsIn(plan, 2);
  ASSERT_EQ(first.size(), 90u);
  ASSERT_EQ(second.size(), 95u);
  std::vector<bool> on(3);
  for (size_t token = 0; token < 80; ++token) {
    EXPECT_EQ(second[token], first[token]) << token;
    on[second[token].first] = true;
  }
  EXPECT_EQ(on, (std::vector<bool>{true, true, true}));
  EXPECT_TRUE(plan.chunks.empty());
  ASSERT_EQ(plan.rows.size(), 15u);
  EXPECT_EQ(plan.rows.front().position, 80u);
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(2), (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(events_.tokens.back().cached_tokens, 80u);
}

// Rows would take longer than chunks of everything.
TEST_F(SchedulerCutPrefixTest, WhoFindsLessThanHalfComputesAllAndIsFoundLater) {
  Make(Cut(200));
  ASSERT_TRUE(Submit(1, 90, 100).ok());
  RunUntilIdle();
  SequenceRequest other = Request(2, 100, 104);
  std::fill(other.prompt.begin() + 16, other.prompt.end(), 6);  // One block in common.
  ASSERT_TRUE(scheduler_->Submit(other).ok());
  const plan::StepPlan plan = PlanOfJoin(2);
  EXPECT_TRUE(plan.rows.empty());
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].first_token, 0u);
  RunUntilIdle();
  other.id = 3;
  ASSERT_TRUE(scheduler_->Submit(other).ok());
  EXPECT_EQ(PlanOfJoin(3).rows.front().position, 96u);
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(2).size(), 4u);
  EXPECT_EQ(IndicesOf(3).size(), 4u);
}

// What waits for the same prompt waits for all of its spans.
TEST_F(SchedulerCutPrefixTest, TheSamePromptIsComputedOnce) {
  Make(Cut(200));
  ASSERT_TRUE(Submit(1, 100, 104).ok());
  ASSERT_TRUE(Submit(2, 100, 104).ok());
  PlanOfJoin(1);
  EXPECT_FALSE(joins_.contains(2));
  const plan::StepPlan plan = PlanOfJoin(2);
  EXPECT_TRUE(plan.chunks.empty());
  EXPECT_EQ(RowsOf(plan, 2), 4u);
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(2).size(), 4u);
}

// There is room for two sequences: each step is audited.
TEST_F(SchedulerCutPrefixTest, BlocksOnAllNodesMakeRoomForWhatRuns) {
  Make(Cut(96));
  plan::SequenceId id = 0;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < 4; ++i) {
      SequenceRequest request = Request(++id, 50 + 10 * i, 90 + 10 * i);
      std::fill(request.prompt.begin(), request.prompt.end(), 5 + static_cast<TokenId>(i));
      ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
    }
    RunUntilIdle();
  }
  for (plan::SequenceId one = 1; one <= id; ++one) {
    EXPECT_EQ(IndicesOf(one).size(), 40u) << one;
  }
  EXPECT_GT(scheduler_->prefix_cache().stats().blocks_dropped, 0u);
}

}  // namespace
}  // namespace lamina::core
