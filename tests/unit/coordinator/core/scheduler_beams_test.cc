// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <map>
#include <set>

#include "coordinator/core/beam_search.h"
#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

class SchedulerBeamsTest : public SchedulerTest {
 protected:
  static SequenceRequest Search(plan::SequenceId id, uint32_t prompt, uint32_t tokens_max,
                                uint32_t width) {
    SequenceRequest request = Request(id, prompt, tokens_max);
    request.beams = {.width = width};
    request.answers = {id};
    return request;
  }
  // All plans until nothing is left.
  std::vector<plan::StepPlan> Run() {
    std::vector<plan::StepPlan> all;
    do {
      const std::vector<plan::StepPlan> plans = Plan();
      all.insert(all.end(), plans.begin(), plans.end());
    } while (StepDone());
    return all;
  }
};

TEST_F(SchedulerBeamsTest, BeamsShareTheSlotsOfThoseThatTheyContinue) {
  Make(SmallOptions());
  ASSERT_TRUE(scheduler_->Submit(Search(1, 20, 24, 3)).ok());
  const std::vector<plan::StepPlan> plans = Run();

  // Prompt, then three beams at 20, 21 and 22, then nothing but leaves.
  ASSERT_EQ(plans.size(), 5u);
  EXPECT_EQ(plans[0].chunks.size(), 1u);
  for (uint32_t step = 1; step < 4; ++step) {
    EXPECT_TRUE(plans[step].chunks.empty());
    ASSERT_EQ(plans[step].rows.size(), 3u);
    ASSERT_EQ(plans[step].joins.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(plans[step].rows[i].position, 19 + step);
      EXPECT_EQ(plans[step].joins[i].tokens.size(), 20 + step);
      EXPECT_EQ(plans[step].joins[i].prompt_tokens, 20u);
      EXPECT_EQ(scheduler_->AnswerOf(plans[step].joins[i].id), plans[step].joins[i].id)
          << "the search is over";
    }
    EXPECT_EQ(plans[step].leaves.size(), step == 1 ? 1u : 3u);
  }
  // Each of the 20 slots of the prompt has been allocated four times, and of the other nine three
  // may be allocated to several.
  std::map<uint32_t, int> allocated;
  for (const plan::StepPlan& plan : plans) {
    for (const plan::SlotAllocation& allocation : plan.allocations) {
      for (uint32_t i = 0; i < allocation.extent.tokens; ++i) {
        ++allocated[allocation.extent.first_slot + i];
      }
    }
  }
  EXPECT_LE(allocated.size(), 29u);
  EXPECT_EQ(allocated[0], 10);
  EXPECT_EQ(IndicesOf(1), (std::vector<uint32_t>{0, 1, 2, 3}));
  ASSERT_NE(EndOf(1), nullptr);
  EXPECT_EQ(EndOf(1)->reason, plan::FinishReason::kLength);
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_EQ(scheduler_->KvStats(0).slots_free, 1000u);
}

TEST_F(SchedulerBeamsTest, BeamsThatAreTooLongForOnePlanJoinInSeveral) {
  SchedulerOptions options = SmallOptions();
  options.join_tokens_max = 45;
  Make(options);
  ASSERT_TRUE(scheduler_->Submit(Search(1, 20, 24, 3)).ok());

  for (const plan::StepPlan& plan : Run()) {
    size_t tokens = 0;
    for (const plan::SequenceJoin& join : plan.joins) {
      tokens += join.tokens.size();
    }
    EXPECT_TRUE(plan.joins.size() <= 1 || tokens <= 45) << tokens;
  }

  EXPECT_EQ(IndicesOf(1), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_EQ(scheduler_->KvStats(0).slots_free, 1000u);
}

TEST_F(SchedulerBeamsTest, AnswersComeBestFirstEachUnderItsId) {
  Make(SmallOptions());
  SequenceRequest request = Search(1, 4, 7, 2);
  request.answers = {1, 2};
  ASSERT_TRUE(scheduler_->Submit(request).ok());
  Run();
  EXPECT_EQ(IndicesOf(1), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(IndicesOf(2), (std::vector<uint32_t>{0, 1, 2}));
  double sums[2] = {};
  for (const TokenEvent& event : events_.tokens) {
    sums[event.sequence - 1] += static_cast<double>(event.token.logprob);
  }
  EXPECT_GT(sums[0], sums[1]);
}

TEST_F(SchedulerBeamsTest, ASearchEndsWithItsLastAnswer) {
  Make(SmallOptions());
  SequenceRequest request = Search(1, 4, 100, 3);
  request.answers = {1, 2};
  ASSERT_TRUE(scheduler_->Submit(request).ok());
  for (int i = 0; i < 5; ++i) {
    Plan();
    StepDone();
  }
  scheduler_->Finish(1);
  EXPECT_TRUE(scheduler_->Audit().ok());
  Plan();
  StepDone();
  EXPECT_TRUE(scheduler_->HasWork());
  scheduler_->Finish(2);
  RunUntilIdle();
  EXPECT_EQ(EndOf(1), nullptr);
  EXPECT_EQ(EndOf(2), nullptr);
  EXPECT_EQ(scheduler_->KvStats(0).slots_free, 1000u);
}

TEST_F(SchedulerBeamsTest, WithoutSlotsBeamsWaitAndAreComputedAnew) {
  Make(SmallOptions(24));
  ASSERT_TRUE(scheduler_->Submit(Search(1, 16, 25, 4)).ok());
  const std::vector<plan::StepPlan> plans = Run();
  uint32_t chunks = 0;
  for (const plan::StepPlan& plan : plans) {
    chunks += static_cast<uint32_t>(plan.chunks.size());
  }
  EXPECT_GT(chunks, 4u);
  EXPECT_EQ(IndicesOf(1).size(), 9u);
  EXPECT_FALSE(scheduler_->HasWork());
}

// One at a time, on a node that has slots for little more than one of them.
TEST_F(SchedulerBeamsTest, BeamsThatQueueGetTheSlotsThatTheirSiblingsKeep) {
  for (const uint32_t slots : {28u, 29u, 31u, 34u, 40u}) {
    SchedulerOptions options = SmallOptions();
    options.memory_nodes[0].slots = slots;
    options.running_max = 1;
    options.kv = KvForm::kInt8;
    options.int8_tails = 1;
    options.int8_block_tokens = 6;
    Make(options);
    ASSERT_TRUE(scheduler_->Submit(Search(1, 20, 28, 3)).ok());
    Run();
    ASSERT_NE(EndOf(1), nullptr) << slots << " slots";
    EXPECT_EQ(EndOf(1)->reason, plan::FinishReason::kLength);
    EXPECT_FALSE(scheduler_->HasWork());
    EXPECT_EQ(scheduler_->KvStats(0).slots_free, slots);
  }
}

class SchedulerInt8BeamsTest : public SchedulerBeamsTest,
                               public testing::WithParamInterface<uint32_t> {};

// Blocks of 8: the open one is computed again by each beam. Cut, it begins a span at 24.
TEST_P(SchedulerInt8BeamsTest, ShareClosedBlocksAlone) {
  SchedulerOptions options = SmallOptions();
  options.span_tokens = GetParam();
  options.kv = KvForm::kInt8;
  options.int8_tails = options.running_max;
  options.int8_block_tokens = 8;
  Make(options);
  ASSERT_TRUE(scheduler_->Submit(Search(1, 20, 27, 2)).ok());
  const std::vector<plan::StepPlan> plans = Run();
  std::map<uint32_t, std::set<plan::SequenceId>> holders;  // Who holds a slot.
  for (const plan::StepPlan& plan : plans) {
    std::map<plan::SequenceId, uint32_t> tokens;
    for (const plan::SlotAllocation& allocation : plan.allocations) {
      for (uint32_t i = 0; i < allocation.extent.tokens; ++i) {
        holders[allocation.extent.first_slot + i].insert(allocation.sequence);
        ++tokens[allocation.sequence];
      }
    }
    for (const plan::SequenceJoin& join : plan.joins) {
      const auto joined = static_cast<uint32_t>(join.tokens.size());
      EXPECT_EQ(tokens[join.id], joined);
      if (joined > 20) {
        const uint32_t shared = (joined - 1) / 8 * 8;
        EXPECT_EQ(std::count_if(plan.rows.begin(), plan.rows.end(),
                                [&](const auto& row) { return row.sequence == join.id; }),
                  joined - shared);
      }
    }
  }
  // The first two blocks are the prompt's, and are shared by the beams of all six steps.
  EXPECT_EQ(holders[0].size(), 13u);
  EXPECT_EQ(holders[15], holders[0]);
  ASSERT_NE(EndOf(1), nullptr);
  EXPECT_EQ(scheduler_->KvStats(0).slots_free, 1000u);
}

INSTANTIATE_TEST_SUITE_P(Spans, SchedulerInt8BeamsTest, testing::Values(0u, 24u));

TEST_F(SchedulerBeamsTest, WhatASearchFindsInTheCacheCountsOnce) {
  SchedulerOptions options = SmallOptions();
  options.prefix_cache = true;
  Make(options);
  ASSERT_TRUE(Submit(1, 40, 42).ok());
  Run();
  ASSERT_TRUE(scheduler_->Submit(Search(2, 40, 44, 3)).ok());
  uint32_t cached = 0;
  uint32_t continued = 0;
  for (const plan::StepPlan& plan : Run()) {
    for (const plan::SequenceJoin& join : plan.joins) {
      cached += join.cached_tokens;
      continued += join.input_tokens() < join.tokens.size() ? 1 : 0;
    }
  }
  EXPECT_EQ(continued, 9u);
  EXPECT_EQ(cached, 32u);  // Two blocks of 16.
  ASSERT_NE(EndOf(2), nullptr);
  EXPECT_EQ(events_.tokens.back().cached_tokens, cached);
}

TEST_F(SchedulerBeamsTest, ANodeThatIsLostCostsOnlyTime) {
  Make(SmallOptions());
  ASSERT_TRUE(scheduler_->Submit(Search(1, 8, 20, 3)).ok());
  for (int i = 0; i < 4; ++i) {
    Plan();
    StepDone();
  }
  in_flight_.clear();
  scheduler_->StartEpoch(1, SmallOptions().memory_nodes, {"a"}, events_);
  EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
  Run();
  EXPECT_EQ(IndicesOf(1).size(), 12u);
  ASSERT_NE(EndOf(1), nullptr);
  EXPECT_TRUE(EndOf(1)->status.ok());
}

TEST_F(SchedulerBeamsTest, WhatFailsEndsTheSearchUnderItsOwnId) {
  Make(SmallOptions());
  SequenceRequest request = Search(1, 8, 20, 3);
  request.answers = {1, 2};
  ASSERT_TRUE(scheduler_->Submit(request).ok());
  for (int i = 0; i < 3; ++i) {
    Plan();
    StepDone();
  }
  scheduler_->FailAll(absl::UnavailableError("gone"), events_);
  ASSERT_EQ(events_.finished.size(), 2u);
  EXPECT_EQ(EndOf(1)->status.message(), "gone");
  EXPECT_EQ(EndOf(2)->status.message(), "gone");
  EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
}

TEST_F(SchedulerBeamsTest, RefusesWhatCannotWork) {
  Make(SmallOptions());
  SequenceRequest request = Search(1, 4, 8, 10);
  request.end_tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  EXPECT_EQ(scheduler_->Submit(request).message(),
            "a beam search with 10 beams and 11 end and stop tokens needs the 21 most likely "
            "tokens of a row, at most 20 are reported; ask for fewer beams or stop tokens");
  EXPECT_FALSE(scheduler_->Submit(Search(2, 4, 8, 11)).ok());
}

// The prompt is a chunk in lane 1; each beam is a row in lane 0, which shares all slots but its
// own.
TEST_F(SchedulerBeamsTest, BehindAPrefillLaneBeamsGoOnInALaneThatDecodes) {
  for (const bool kept : {false, true}) {
    SCOPED_TRACE(kept);
    SchedulerOptions options = SmallOptions();
    options.prefill_lanes = {.replicas = 1};
    options.prefix_cache = kept;
    Make(options);
    events_ = {};
    ASSERT_TRUE(scheduler_->Submit(Search(1, 20, 24, 3)).ok());
    uint32_t chunks = 0;
    uint32_t rows = 0;
    std::set<uint32_t> slots;
    for (const plan::StepPlan& plan : Run()) {
      EXPECT_TRUE(plan.lane == 1 ? plan.rows.empty() : plan.chunks.empty());
      EXPECT_EQ(plan.joins.size(), plan.chunks.size() + plan.rows.size());
      chunks += static_cast<uint32_t>(plan.chunks.size());
      rows += static_cast<uint32_t>(plan.rows.size());
      for (const plan::SlotAllocation& allocation : plan.allocations) {
        for (uint32_t i = 0; i < allocation.extent.tokens; ++i) {
          slots.insert(allocation.extent.first_slot + i);
        }
      }
    }
    EXPECT_EQ(chunks, 1u);
    EXPECT_EQ(rows, 9u);
    EXPECT_LE(slots.size(), 29u);
    EXPECT_EQ(IndicesOf(1), (std::vector<uint32_t>{0, 1, 2, 3}));
    ASSERT_NE(EndOf(1), nullptr);
    EXPECT_EQ(EndOf(1)->reason, plan::FinishReason::kLength);
    EXPECT_FALSE(scheduler_->HasWork());
    EXPECT_EQ(scheduler_->KvStats(0).slots_held, 0u);
  }
}

TEST_F(SchedulerBeamsTest, BehindAPrefillLaneBeamsGoOnWhereTheLeastWorkIs) {
  SchedulerOptions options = SmallOptions();
  options.lanes = 2;
  options.prefill_lanes = {.replicas = 1};
  Make(options);
  ASSERT_TRUE(Submit(1, 4, 100).ok());
  Plan();
  ASSERT_TRUE(StepDoneOf(2));
  Plan();
  ASSERT_EQ(scheduler_->Stats().lanes[0].rows, 1u);
  ASSERT_TRUE(scheduler_->Submit(Search(2, 20, 24, 3)).ok());
  std::map<uint32_t, uint32_t> joins;  // By lane.
  for (const plan::StepPlan& plan : Run()) {
    joins[plan.lane] += static_cast<uint32_t>(plan.joins.size());
  }
  EXPECT_EQ(joins[0], 0u);
  EXPECT_EQ(joins[1], 9u);
  EXPECT_EQ(joins[2], 1u);
  EXPECT_EQ(IndicesOf(1).size(), 96u);
  EXPECT_EQ(IndicesOf(2).size(), 4u);
}

TEST_F(SchedulerBeamsTest, SearchesWhosePromptsEndTogetherGoOnInDifferentLanes) {
  SchedulerOptions options = SmallOptions();
  options.lanes = 2;
  options.prefill_lanes = {.replicas = 1};
  Make(options);
  ASSERT_TRUE(scheduler_->Submit(Search(1, 8, 12, 3)).ok());
  ASSERT_TRUE(scheduler_->Submit(Search(2, 8, 12, 3)).ok());
  const std::vector<plan::StepPlan> first = Plan();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].chunks.size(), 2u);
  ASSERT_TRUE(StepDone());
  std::map<uint32_t, uint32_t> joins;  // By lane.
  for (const plan::StepPlan& plan : Run()) {
    joins[plan.lane] += static_cast<uint32_t>(plan.joins.size());
  }
  EXPECT_EQ(joins[0], 9u);
  EXPECT_EQ(joins[1], 9u);
  EXPECT_EQ(joins[2], 0u);
  EXPECT_EQ(IndicesOf(1).size(), 4u);
  EXPECT_EQ(IndicesOf(2).size(), 4u);
}

// Beams that find no slots come again through a prefill lane.
TEST_F(SchedulerBeamsTest, BeamsWithoutSlotsAreComputedAnewInAPrefillLane) {
  SchedulerOptions options = SmallOptions(24);
  options.prefill_lanes = {.replicas = 1};
  Make(options);
  ASSERT_TRUE(scheduler_->Submit(Search(1, 16, 25, 4)).ok());
  uint32_t chunks = 0;
  for (const plan::StepPlan& plan : Run()) {
    EXPECT_TRUE(plan.lane == 1 ? plan.rows.empty() : plan.chunks.empty());
    chunks += static_cast<uint32_t>(plan.chunks.size());
  }
  EXPECT_GT(chunks, 4u);
  EXPECT_EQ(IndicesOf(1).size(), 9u);
  EXPECT_FALSE(scheduler_->HasWork());
}

// As when the last prefill node is lost, and comes back.
TEST_F(SchedulerBeamsTest, PrefillLanesComeAndGoWithinASearch) {
  Make(SmallOptions());
  ASSERT_TRUE(scheduler_->Submit(Search(1, 8, 20, 3)).ok());
  for (uint64_t epoch = 1; epoch <= 4; ++epoch) {
    for (int i = 0; i < 3; ++i) {
      Plan();
      StepDone();
    }
    in_flight_.clear();
    scheduler_->StartEpoch(epoch, SmallOptions().memory_nodes, {}, events_,
                           {.replicas = static_cast<uint32_t>(epoch % 2)});
    EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
  }
  Run();
  EXPECT_EQ(IndicesOf(1).size(), 12u);
  ASSERT_NE(EndOf(1), nullptr);
  EXPECT_EQ(EndOf(1)->reason, plan::FinishReason::kLength);
}

}  // namespace
}  // namespace lamina::core
