// SPDX-License-Identifier: Apache-2.0
//
// Over how many lanes sequences are spread, and how they change lanes.

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

class SchedulerLanesTest : public SchedulerTest {
 protected:
  void MakeLanes(uint32_t lanes) {
    SchedulerOptions options = SmallOptions();
    options.lanes = lanes;
    options.lanes_auto = true;
    Make(options);
  }

  // Slices cost what weights cost, whatever the rows.
  static cost::LaneCosts BoundByWeights() {
    return {.slice_fixed = 1e-3, .attention_per_token = 1e-9, .measured = true};
  }
  // Slices and attentions take about as long as each other, by rows and by tokens.
  static cost::LaneCosts Balanced() {
    return {.slice_per_row = 1e-3, .attention_per_token = 3e-5, .measured = true};
  }

  // Plans and answers so many steps; the lanes that had rows in the last two plans of each.
  void Steps(int count) {
    for (int i = 0; i < count; ++i) {
      Plan();
      StepDone();
    }
  }

  std::vector<uint32_t> RowsOfLanes() const {
    std::vector<uint32_t> rows;
    for (const SchedulerStats::LaneStats& lane : scheduler_->Stats().lanes) {
      rows.push_back(lane.rows);
    }
    return rows;
  }
};

// Steps of the lane with less work have no token for a newcomer before its prompt is done.
TEST_F(SchedulerLanesTest, NewcomersDoNotWaitForALongPromptOfAnotherLane) {
  SchedulerOptions options = SmallOptions(10'000);
  options.lanes = 2;
  options.chunk_tokens = 32;
  options.step_tokens_max = 32;
  options.scratch_tokens = 4000;
  options.sequence_tokens_max = 4000;
  Make(options);
  ASSERT_TRUE(Submit(1, 2000, 3500).ok());
  for (int i = 0; i < 200 && IndicesOf(1).empty(); ++i) {
    Steps(1);
  }
  ASSERT_TRUE(Submit(2, 1500, 1600).ok());
  Steps(4);
  ASSERT_TRUE(Submit(3, 5, 20).ok());
  Steps(8);
  EXPECT_FALSE(IndicesOf(3).empty());
  EXPECT_TRUE(IndicesOf(2).empty()) << "its prompt takes 47 steps";
}

// Lanes that are bound to nodes: 0 and 2 to node a, 1 and 3 to node b.
class BoundLanesTest : public SchedulerLanesTest {
 protected:
  void MakeBound(uint32_t lanes, uint32_t slots_a, uint32_t slots_b, bool prefix_cache = false) {
    SchedulerOptions options = SmallOptions(slots_a);
    options.memory_nodes.push_back({.name = "b", .slots = slots_b});
    options.memory_nodes[0].bandwidth_bytes_per_second = 0;
    options.lanes = lanes;
    options.prefix_cache = prefix_cache;
    Make(options);
    scheduler_->HoldLanes(lanes, "bound");
    scheduler_->StartEpoch(1, options.memory_nodes, {}, events_, {}, LaneHomes::Bound(2));
  }
  // The lane in which the sequence has joined.
  uint32_t LaneOf(plan::SequenceId id) const { return lane_of_.at(id); }
  void NoteLanes(const std::vector<plan::StepPlan>& plans) {
    for (const plan::StepPlan& plan : plans) {
      for (const plan::SequenceJoin& join : plan.joins) {
        lane_of_[join.id] = plan.lane;
        EXPECT_EQ(join.memory_node, plan.lane % 2) << "sequence " << join.id;
      }
    }
  }
  void Finish() {
    for (int step = 0; step < 1000; ++step) {
      NoteLanes(Plan());
      if (!StepDone()) {
        return;
      }
    }
    FAIL() << "it does not end";
  }

  std::map<plan::SequenceId, uint32_t> lane_of_;
};

TEST_F(BoundLanesTest, NewcomersAreSpreadOverNodesAndLiveWhereTheirLaneDoes) {
  MakeBound(4, 1000, 1000);
  for (plan::SequenceId id = 1; id <= 8; ++id) {
    ASSERT_TRUE(Submit(id, 5, 40).ok());
  }
  for (int i = 0; i < 8; ++i) {
    NoteLanes(Plan());
    StepDone();
  }
  EXPECT_EQ(RowsOfLanes(), (std::vector<uint32_t>{2, 2, 2, 2}));
  Finish();
  EXPECT_FALSE(scheduler_->HasWork());
}

TEST_F(BoundLanesTest, ANewcomerTakesALaneWhoseNodeHasSlots) {
  MakeBound(2, 30, 1000);
  for (plan::SequenceId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(Submit(id, 40, 60).ok());
  }
  Finish();
  for (plan::SequenceId id = 1; id <= 3; ++id) {
    EXPECT_EQ(LaneOf(id), 1u);
    ASSERT_NE(EndOf(id), nullptr);
    EXPECT_TRUE(EndOf(id)->status.ok());
  }
}

TEST_F(BoundLanesTest, WhoGoesOnWithAnAnswerJoinsALaneOfTheNodeThatKeepsIt) {
  MakeBound(4, 1000, 1000, /*prefix_cache=*/true);
  ASSERT_TRUE(Submit(1, 10, 20).ok());  // Lane 0.
  NoteLanes(Plan());
  SequenceRequest other = Request(2, 40, 60);
  other.prompt.assign(40, 9);
  ASSERT_TRUE(scheduler_->Submit(other).ok());
  Finish();
  const uint32_t node = LaneOf(2) % 2;
  for (plan::SequenceId id = 3; id <= 5; ++id) {
    other.id = id;
    other.prompt.assign(41, 9);
    ASSERT_TRUE(scheduler_->Submit(other).ok());
    Finish();
    EXPECT_EQ(LaneOf(id) % 2, node) << id;
  }
}

TEST_F(BoundLanesTest, SequencesChangeLanesOnlyWithinTheirNode) {
  MakeBound(4, 1000, 1000);
  for (plan::SequenceId id = 1; id <= 8; ++id) {
    ASSERT_TRUE(Submit(id, 5, 100).ok());
  }
  for (int i = 0; i < 8; ++i) {
    NoteLanes(Plan());
    StepDone();
  }
  // Lane 0 keeps its two, lane 2 of the same node has none: one moves. Those of node b stay.
  for (const auto& [id, lane] : lane_of_) {
    if (lane == 2) {
      scheduler_->Finish(id);
    }
  }
  Steps(20);
  EXPECT_EQ(RowsOfLanes(), (std::vector<uint32_t>{1, 2, 1, 2}));
  Finish();
}

TEST_F(BoundLanesTest, PreemptedSequencesMayGoOnElsewhere) {
  MakeBound(2, 60, 60);
  for (plan::SequenceId id = 1; id <= 6; ++id) {
    ASSERT_TRUE(Submit(id, 10, 50).ok());
  }
  Finish();
  EXPECT_GT(scheduler_->Stats().preemptions, 0u);
  for (plan::SequenceId id = 1; id <= 6; ++id) {
    EXPECT_EQ(IndicesOf(id).size(), 40u);
  }
}

TEST_F(SchedulerLanesTest, FewerRowsThanLanesRunInOne) {
  MakeLanes(3);
  ASSERT_TRUE(Submit(1, 5, 60).ok());
  ASSERT_TRUE(Submit(2, 5, 60).ok());
  Steps(10);
  EXPECT_EQ(RowsOfLanes(), (std::vector<uint32_t>{2, 0, 0}));
  ASSERT_TRUE(Submit(3, 5, 60).ok());
  Steps(20);
  EXPECT_EQ(RowsOfLanes(), (std::vector<uint32_t>{1, 1, 1}));
  RunUntilIdle();
  for (plan::SequenceId id = 1; id <= 3; ++id) {
    EXPECT_EQ(IndicesOf(id).size(), 55u);
    ASSERT_NE(EndOf(id), nullptr);
  }
}

TEST_F(SchedulerLanesTest, LanesAreEvenedOutWhenOthersLeave) {
  MakeLanes(2);
  for (plan::SequenceId id = 1; id <= 8; ++id) {
    ASSERT_TRUE(Submit(id, 5, 100).ok());
  }
  Steps(10);
  ASSERT_EQ(RowsOfLanes(), (std::vector<uint32_t>{4, 4}));
  for (const plan::SequenceId id : {1u, 3u, 5u}) {
    scheduler_->Finish(id);
  }
  Steps(30);
  std::vector<uint32_t> rows = RowsOfLanes();
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ(rows, (std::vector<uint32_t>{2, 3}));
  EXPECT_GT(scheduler_->Stats().lane_moves, 0u);
  RunUntilIdle();
  for (const plan::SequenceId id : {2u, 4u, 6u, 7u, 8u}) {
    std::vector<uint32_t> all(95);
    for (uint32_t i = 0; i < all.size(); ++i) {
      all[i] = i;
    }
    EXPECT_EQ(IndicesOf(id), all);  // None twice, none left out.
  }
}

// Two long sequences in one lane and a short one in the other: by rows that is as even as can be.
TEST_F(SchedulerLanesTest, LanesAreEvenedOutByContextToo) {
  SchedulerOptions options = SmallOptions(2000);
  options.lanes = 2;
  options.sequence_tokens_max = 512;
  options.scratch_tokens = 1024;
  Make(options);
  for (const plan::SequenceId id : {1u, 2u, 3u}) {
    ASSERT_TRUE(Submit(id, 300, 450).ok());
  }
  ASSERT_TRUE(Submit(4, 5, 150).ok());
  std::map<plan::SequenceId, uint32_t> lane_of;
  for (int i = 0; i < 80; ++i) {
    for (const plan::StepPlan& plan : Plan()) {
      for (const plan::DecodeRow& row : plan.rows) {
        lane_of[row.sequence] = plan.lane;
      }
    }
    StepDone();
  }
  ASSERT_EQ(RowsOfLanes(), (std::vector<uint32_t>{2, 2}));
  for (const plan::SequenceId id : {1u, 2u, 3u}) {
    if (lane_of[id] == lane_of[4]) {
      scheduler_->Finish(id);
    }
  }
  Steps(30);
  for (const SchedulerStats::LaneStats& lane : scheduler_->Stats().lanes) {
    EXPECT_GE(lane.context_tokens, 300u);
  }
  EXPECT_EQ(scheduler_->Stats().lane_moves, 1u);
  RunUntilIdle();
}

TEST_F(SchedulerLanesTest, MeasuredTimesDecide) {
  MakeLanes(2);
  for (plan::SequenceId id = 1; id <= 6; ++id) {
    ASSERT_TRUE(Submit(id, 5, 128).ok());
  }
  Steps(10);
  ASSERT_EQ(RowsOfLanes(), (std::vector<uint32_t>{3, 3}));
  scheduler_->SetLaneCosts(BoundByWeights());
  Steps(20);
  EXPECT_EQ(RowsOfLanes(), (std::vector<uint32_t>{6, 0}));
  EXPECT_EQ(scheduler_->lane_count().lanes, 1u);
  EXPECT_THAT(scheduler_->lane_count().why, testing::HasSubstr("1 of 2 lanes: 6 rows"));
  scheduler_->SetLaneCosts(Balanced());
  Steps(30);
  EXPECT_EQ(RowsOfLanes(), (std::vector<uint32_t>{3, 3}));
  RunUntilIdle();
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 1000u);
}

TEST_F(SchedulerLanesTest, NewSequencesFollowTheBandwidthsOfNow) {
  SchedulerOptions options = SmallOptions();
  options.memory_nodes = {{.name = "m0", .slots = 1000, .bandwidth_bytes_per_second = 1},
                          {.name = "m1", .slots = 1000, .bandwidth_bytes_per_second = 1}};
  Make(options);
  const auto counts = [this](plan::SequenceId first, plan::SequenceId last) {
    std::vector<int> of_nodes(2);
    for (plan::SequenceId id = first; id <= last; ++id) {
      ++of_nodes[joins_[id].memory_node];
    }
    return of_nodes;
  };
  for (plan::SequenceId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(Submit(id, 20, 60).ok());
  }
  Steps(10);
  EXPECT_EQ(counts(1, 4), (std::vector<int>{2, 2}));
  RunUntilIdle();
  scheduler_->SetBandwidths({3.5, 1});
  for (plan::SequenceId id = 5; id <= 8; ++id) {
    ASSERT_TRUE(Submit(id, 20, 60).ok());
  }
  Steps(10);
  EXPECT_EQ(counts(5, 8), (std::vector<int>{3, 1}));
  EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
}

TEST_F(SchedulerLanesTest, RowsLeaveInChunksWhereTheLinkIsMeasuredToBeSlow) {
  SchedulerOptions options = SmallOptions();
  options.sub_batches = {.automatic = true};
  Make(options);
  for (plan::SequenceId id = 1; id <= 8; ++id) {
    ASSERT_TRUE(Submit(id, 5, 128).ok());
  }
  Steps(10);
  EXPECT_EQ(scheduler_->Stats().sub_batches.cut.chunks, 1u);
  scheduler_->SetLaneCosts(Balanced());
  scheduler_->SetLinkCosts(
      {.seconds_per_row = 4e-4, .seconds_per_message = 1e-5, .measured = true});
  Steps(10);
  EXPECT_GT(scheduler_->Stats().sub_batches.cut.chunks, 2u);
  EXPECT_FALSE(scheduler_->Stats().sub_batches.cut.by_heads);
  EXPECT_THAT(scheduler_->Stats().sub_batches.why, testing::HasSubstr("8 rows"));
  RunUntilIdle();
}

TEST_F(SchedulerLanesTest, TheLastRowLeavesInChunksOfHeads) {
  SchedulerOptions options = SmallOptions();
  options.sub_batches = {.automatic = true};
  Make(options);
  scheduler_->SetLaneCosts(Balanced());
  scheduler_->SetLinkCosts(
      {.seconds_per_row = 4e-3, .seconds_per_message = 1e-5, .measured = true, .kv_heads = 3});
  ASSERT_TRUE(Submit(1, 5, 40).ok());
  Steps(10);
  EXPECT_EQ(scheduler_->Stats().sub_batches.cut, (plan::Chunking{.chunks = 3, .by_heads = true}));
  EXPECT_THAT(scheduler_->Stats().sub_batches.why,
              testing::StartsWith("3 chunks of KV heads: 1 row,"));
  RunUntilIdle();
}

TEST_F(SchedulerLanesTest, ASequenceOnItsWayMayBeEndedOrPreempted) {
  SchedulerOptions options = SmallOptions(60);
  options.lanes = 2;
  options.lanes_auto = true;
  Make(options);
  for (plan::SequenceId id = 1; id <= 6; ++id) {
    ASSERT_TRUE(Submit(id, 5, 50).ok());
  }
  int steps = 0;
  do {
    Plan();
    scheduler_->SetLaneCosts(++steps % 8 < 4 ? BoundByWeights() : Balanced());
    ASSERT_LT(steps, 10'000);
    if (steps == 20) {
      scheduler_->Finish(2);
      EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
    }
  } while (StepDone());
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_GT(scheduler_->Stats().lane_moves, 0u);
  EXPECT_GT(scheduler_->Stats().preemptions, 0u);
  for (const plan::SequenceId id : {1u, 3u, 4u, 5u, 6u}) {
    EXPECT_EQ(IndicesOf(id).size(), 45u);
  }
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 60u);
}

}  // namespace
}  // namespace lamina::core
