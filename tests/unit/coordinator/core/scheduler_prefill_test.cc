// SPDX-License-Identifier: Apache-2.0
//
// Prefill lanes: prompts at their own pace, rows in the other lanes.

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

class SchedulerPrefillTest : public SchedulerTest {
 protected:
  void MakeLanes(uint32_t lanes, uint32_t prefill_lanes, uint32_t slots = 1000) {
    SchedulerOptions options = SmallOptions(slots);
    options.lanes = lanes;
    options.prefill_lanes = {.replicas = prefill_lanes};
    Make(options);
  }

  void MakeKeeping(uint32_t slots = 1000) {
    SchedulerOptions options = SmallOptions(slots);
    options.prefill_lanes = {.replicas = 1};
    options.prefix_cache = true;
    options.plan_ahead = 1;
    options.prompt_rows_max = 32;
    Make(options);
  }

  // A request whose prompt is `common` tokens that all of these have, and then `own` others.
  static SequenceRequest Behind(plan::SequenceId id, uint32_t common, uint32_t own, TokenId token) {
    SequenceRequest request = Request(id, common + own, common + own + 3);
    std::fill(request.prompt.begin() + common, request.prompt.end(), token);
    return request;
  }

  // Runs it alone to its end; in which lane it joined, and with how many tokens found.
  std::pair<uint32_t, uint32_t> LaneOf(const SequenceRequest& request) {
    const uint64_t before = scheduler_->Stats().prefix_cache.tokens_found;
    EXPECT_TRUE(scheduler_->Submit(request).ok());
    std::optional<uint32_t> lane;
    do {
      for (const plan::StepPlan& plan : Plan()) {
        EXPECT_TRUE(plan.lane >= 1 ? plan.rows.empty() : plan.chunks.empty());
        if (!plan.joins.empty()) {
          lane = plan.lane;
        }
      }
    } while (StepDone());
    EXPECT_EQ(IndicesOf(request.id), (std::vector<uint32_t>{0, 1, 2}));
    const uint64_t found = scheduler_->Stats().prefix_cache.tokens_found - before;
    return {lane.value_or(UINT32_MAX), static_cast<uint32_t>(found)};
  }

  // Plans, checks that lanes keep to what they are for, and returns the plan of `lane`, if any.
  std::optional<plan::StepPlan> PlanOf(uint32_t lane, uint32_t first_prefill_lane) {
    std::optional<plan::StepPlan> found;
    for (plan::StepPlan& plan : Plan()) {
      EXPECT_TRUE(plan.lane >= first_prefill_lane ? plan.rows.empty() : plan.chunks.empty());
      if (plan.lane == lane && !found.has_value()) {
        found = std::move(plan);
      }
    }
    return found;
  }
};

TEST_F(SchedulerPrefillTest, APromptRunsInThePrefillLaneAndDecodesInAnother) {
  MakeLanes(1, 1);
  ASSERT_TRUE(Submit(1, 40, 44).ok());
  const auto first = PlanOf(1, 1);
  ASSERT_TRUE(first.has_value());
  ASSERT_EQ(first->joins.size(), 1u);
  EXPECT_EQ(first->chunks.at(0).tokens, 32u);
  EXPECT_FALSE(PlanOf(0, 1).has_value());
  ASSERT_TRUE(StepDoneOf(1));
  ASSERT_TRUE(StepDoneOf(1));  // The last chunk, and with it the first token.
  EXPECT_EQ(IndicesOf(1), (std::vector<uint32_t>{0}));
  const auto row = PlanOf(0, 1);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->rows.at(0).position, 40u);
  EXPECT_TRUE(row->joins.empty());
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(1), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(EndOf(1)->reason, plan::FinishReason::kLength);
}

TEST_F(SchedulerPrefillTest, DecodeGoesOnWhileAPrefillStepIsUnderWay) {
  MakeLanes(2, 1);
  ASSERT_TRUE(Submit(1, 4, 100).ok());
  Plan();
  ASSERT_TRUE(StepDoneOf(2));
  ASSERT_TRUE(Submit(2, 120, 128).ok());
  Plan();
  // No prefill step is answered meanwhile.
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(StepDoneOf(0)) << i;
    PlanOf(0, 2);
  }
  EXPECT_EQ(IndicesOf(1).size(), 51u);
  EXPECT_TRUE(IndicesOf(2).empty());
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(2).size(), 8u);
}

TEST_F(SchedulerPrefillTest, SeveralPromptsSpreadOverTheNodesEachWithItsScratch) {
  MakeLanes(1, 2);
  // The scratch of 256 tokens of each node has room for two.
  for (plan::SequenceId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(Submit(id, 120, 124).ok());
  }
  std::map<uint32_t, std::set<plan::SequenceId>> joined;
  std::map<uint32_t, std::set<uint32_t>> offsets;
  for (int step = 0; step < 200 && scheduler_->HasWork(); ++step) {
    for (const plan::StepPlan& plan : Plan()) {
      for (const plan::PrefillChunk& chunk : plan.chunks) {
        joined[plan.lane].insert(chunk.sequence);
        offsets[plan.lane].insert(chunk.scratch_offset);
      }
    }
    StepDone();
  }
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_EQ(joined[1].size(), 2u);
  EXPECT_EQ(joined[2].size(), 2u);
  EXPECT_EQ(offsets[1], offsets[2]);
  for (plan::SequenceId id = 1; id <= 4; ++id) {
    EXPECT_EQ(IndicesOf(id).size(), 4u);
  }
}

TEST_F(SchedulerPrefillTest, APreemptedPromptComesAgainThroughAPrefillLane) {
  MakeLanes(1, 1, /*slots=*/60);
  ASSERT_TRUE(Submit(1, 8, 50).ok());
  Plan();
  ASSERT_TRUE(StepDoneOf(1));
  ASSERT_TRUE(Submit(2, 20, 50).ok());
  RunUntilIdle();
  EXPECT_GT(scheduler_->Stats().preemptions, 0u);
  EXPECT_EQ(IndicesOf(1).size(), 42u);
  EXPECT_EQ(IndicesOf(2).size(), 30u);
}

TEST_F(SchedulerPrefillTest, WithoutRoomInALaneThatDecodesASequenceWaitsInThePrefillLane) {
  SchedulerOptions options = SmallOptions();
  options.prefill_lanes = {.replicas = 1};
  options.rows_max = 1;
  Make(options);
  for (plan::SequenceId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(Submit(id, 8, 20).ok());
  }
  for (int step = 0; step < 200 && scheduler_->HasWork(); ++step) {
    PlanOf(0, 1);
    StepDone();
  }
  EXPECT_FALSE(scheduler_->HasWork());
  for (plan::SequenceId id = 1; id <= 3; ++id) {
    EXPECT_EQ(IndicesOf(id).size(), 12u);
  }
}

TEST_F(SchedulerPrefillTest, ForksShareThePromptAndDecodeWithTheirParent) {
  MakeLanes(2, 1);
  ASSERT_TRUE(Submit(1, 40, 44).ok());
  SequenceRequest fork = Request(2, 40, 44);
  fork.fork_of = 1;
  ASSERT_TRUE(scheduler_->Submit(fork).ok());
  const auto plan = PlanOf(2, 2);
  ASSERT_TRUE(plan.has_value());
  ASSERT_EQ(plan->joins.size(), 2u);
  EXPECT_EQ(plan->joins[1].parent, 1u);
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(1).size(), 4u);
  EXPECT_EQ(IndicesOf(2).size(), 4u);
}

// As when the last prefill node is lost, and comes back.
TEST_F(SchedulerPrefillTest, AnEpochWithoutPrefillLanesRunsPromptsWithRows) {
  MakeLanes(1, 1);
  ASSERT_TRUE(Submit(1, 40, 60).ok());
  ASSERT_TRUE(Submit(2, 100, 110).ok());
  Plan();
  ASSERT_TRUE(StepDoneOf(1));
  const auto change_epoch = [&](uint64_t epoch, uint32_t prefill_lanes) {
    in_flight_.clear();
    scheduler_->StartEpoch(epoch, {{.name = "a", .slots = 1000, .bandwidth_bytes_per_second = 1}},
                           {}, events_, {.replicas = prefill_lanes});
    EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
  };
  change_epoch(1, 0);
  std::vector<plan::StepPlan> plans = Plan();
  ASSERT_FALSE(plans.empty());
  EXPECT_EQ(plans[0].lane, 0u);
  EXPECT_FALSE(plans[0].chunks.empty());
  ASSERT_TRUE(StepDone());
  change_epoch(2, 2);
  plans = Plan();
  ASSERT_FALSE(plans.empty());
  EXPECT_EQ(plans[0].lane, 1u);
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(1).size(), 20u);
  EXPECT_EQ(IndicesOf(2).size(), 10u);
}

using Joined = std::pair<uint32_t, uint32_t>;  // The lane, and tokens found.

// Its last tokens are rows where decode rows attend, too: nodes for prompts have no way to K and V.
TEST_F(SchedulerPrefillTest, BehindAFoundPrefixTheRestOfAPromptIsRowsInALaneThatDecodes) {
  MakeKeeping();
  EXPECT_EQ(LaneOf(Behind(1, 64, 0, 0)), (Joined{1, 0}));
  EXPECT_EQ(LaneOf(Behind(2, 64, 20, 6)), (Joined{0, 64}));
  EXPECT_EQ(LaneOf(Behind(3, 64, 20, 6)), (Joined{0, 80})) << "what rows have stored is found too";
}

TEST_F(SchedulerPrefillTest, WhoFindsLessThanHalfComputesAllOfItsPromptInAPrefillLane) {
  MakeKeeping();
  EXPECT_EQ(LaneOf(Behind(1, 32, 0, 0)), (Joined{1, 0}));
  EXPECT_EQ(LaneOf(Behind(2, 32, 33, 6)), (Joined{1, 0}));
  // What is behind the common tokens is kept nevertheless.
  EXPECT_EQ(LaneOf(Behind(3, 32, 33, 6)), (Joined{0, 64}));
}

// Blocks that it does not share make room for it.
TEST_F(SchedulerPrefillTest, WhoTakesNearlyAllSlotsMayTakeThoseOfWhatItFinds) {
  MakeKeeping(/*slots=*/96);
  EXPECT_EQ(LaneOf(Behind(1, 32, 0, 0)), (Joined{1, 0}));
  EXPECT_EQ(LaneOf(Behind(2, 32, 33, 6)), (Joined{1, 0}));
}

TEST_F(SchedulerPrefillTest, OthersTakePrefillLanesWhileRowsWaitForALaneThatDecodes) {
  MakeKeeping();
  ASSERT_EQ(LaneOf(Behind(1, 64, 0, 0)), (Joined{1, 0}));
  for (plan::SequenceId id = 2; id <= 4; ++id) {
    ASSERT_TRUE(scheduler_->Submit(Behind(id, 64, 40, static_cast<TokenId>(id + 4))).ok());
  }
  ASSERT_TRUE(scheduler_->Submit(Behind(5, 0, 40, 9)).ok());
  std::map<plan::SequenceId, uint32_t> lanes;
  for (const plan::StepPlan& plan : Plan()) {
    for (const plan::SequenceJoin& join : plan.joins) {
      lanes[join.id] = plan.lane;
    }
  }
  // Two have taken the rows of the step, and the third one waits.
  EXPECT_EQ(lanes, (std::map<plan::SequenceId, uint32_t>{{2, 0}, {3, 0}, {5, 1}}));
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(4).size(), 3u);
}

// A part of a prompt that an epoch leaves is no reason for rows either.
TEST_F(SchedulerPrefillTest, WhatAnEpochLeavesOfAPromptIsComputedAgainInAPrefillLane) {
  SchedulerOptions options = SmallOptions();
  options.prefill_lanes = {.replicas = 1};
  options.prefix_cache = true;
  options.plan_ahead = 1;
  options.chunk_tokens = 7;
  options.memory_nodes[0].arena = 1;
  Make(options);
  ASSERT_TRUE(Submit(1, 100, 110).ok());
  Plan();
  ASSERT_TRUE(StepDone());
  in_flight_.clear();
  scheduler_->StartEpoch(
      1, {{.name = "a", .slots = 1000, .arena = 1, .bandwidth_bytes_per_second = 1}}, {}, events_,
      {.replicas = 1});
  for (int step = 0; step < 200 && scheduler_->HasWork(); ++step) {
    PlanOf(0, 1);
    StepDone();
  }
  EXPECT_EQ(IndicesOf(1).size(), 10u);
}

TEST_F(SchedulerPrefillTest, APreemptedSequenceFindsItsOwnBlocks) {
  SchedulerOptions options = SmallOptions(/*slots=*/96);
  options.prefill_lanes = {.replicas = 1};
  options.prefix_cache = true;
  options.plan_ahead = 1;
  Make(options);
  ASSERT_TRUE(Submit(1, 16, 80).ok());
  SequenceRequest other = Request(2, 16, 80);
  std::fill(other.prompt.begin(), other.prompt.end(), 6);
  ASSERT_TRUE(scheduler_->Submit(other).ok());
  RunUntilIdle();
  EXPECT_GT(scheduler_->Stats().preemptions, 0u);
  EXPECT_EQ(IndicesOf(1).size(), 64u);
  EXPECT_EQ(IndicesOf(2).size(), 64u);
}

}  // namespace
}  // namespace lamina::core
