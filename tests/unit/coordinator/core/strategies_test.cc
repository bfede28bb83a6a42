// SPDX-License-Identifier: Apache-2.0
//
// The scheduler's seams: what ships, and a strategy of a test's own in the place of each. The toys
// run in whole worlds in tests/sim/toy_strategies_test.cc.

#include <gmock/gmock.h>

#include "coordinator/core/lane_packing.h"
#include "coordinator/core/out_of_slots.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/step_packing.h"
#include "tests/sim/toy_strategies.h"
#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class FakeFullNode final : public FullNode {
 public:
  explicit FakeFullNode(std::vector<Holding> from_last) : from_last_(std::move(from_last)) {}
  uint32_t node() const override { return 0; }
  SlotHolder needy() const override { return 99; }
  uint64_t slots_missing() const override { return 1; }
  cost::SpillRates spill_rates() const override { return rates; }
  void VisitFromLast(absl::FunctionRef<bool(const Holding&)> visit) const override {
    for (const Holding& holding : from_last_) {
      if (!visit(holding)) {
        return;
      }
    }
  }

  cost::SpillRates rates;

 private:
  std::vector<Holding> from_last_;
};

TEST(PreemptLastTest, TheLastInServiceOrderGivesUpItsSlots) {
  const FakeFullNode full({{.holder = 7, .slots = 1}, {.holder = 3, .slots = 100}});
  EXPECT_EQ(MakePreemptLast()->WhoGivesUp(full).who, SlotHolder(7));
}

// A token takes two seconds through the tier.
constexpr cost::SpillRates kRates = {
    .write_bytes_per_second = 10, .read_bytes_per_second = 10, .bytes_per_token = 10};

TEST(SpillLastTest, TheLastInServiceOrderGoesToTheTierIfThatIsFaster) {
  FakeFullNode full({{.holder = 7, .tokens = 5, .fits_in_tier = true},
                     {.holder = 3, .tokens = 5, .fits_in_tier = true}});
  for (const auto& [prompts, how] :
       {std::pair(0.4, GivesUp::kToTier), {0.6, GivesUp::kToRecompute}}) {
    full.rates = kRates;
    full.rates.prompt_tokens_per_second = prompts;
    const GivingUp answer = MakeSpillLast()->WhoGivesUp(full);
    EXPECT_EQ(answer.who, SlotHolder(7));
    EXPECT_EQ(answer.how, how) << prompts;
  }
}

TEST(SpillLastTest, WhatDoesNotFitIsRecomputed) {
  FakeFullNode full(std::vector<Holding>{{.holder = 7, .tokens = 5}});
  full.rates = kRates;
  EXPECT_EQ(MakeSpillLast()->WhoGivesUp(full).how, GivesUp::kToRecompute);
  const FakeFullNode without(std::vector<Holding>{{.holder = 7, .fits_in_tier = true}});
  EXPECT_EQ(MakeSpillLast()->WhoGivesUp(without).how, GivesUp::kToRecompute) << "no tier";
}

TEST(ToyOutOfSlotsTest, TheLargestButTheFirstGivesUpItsSlots) {
  const FakeFullNode alone(std::vector<Holding>{{.holder = 3}});
  const FakeFullNode full(
      {{.holder = 7, .slots = 1}, {.holder = 5, .slots = 90}, {.holder = 3, .slots = 100}});
  EXPECT_EQ(sim::MakeLargestGivesUp()->WhoGivesUp(full).who, SlotHolder(5));
  EXPECT_EQ(sim::MakeLargestGivesUp()->WhoGivesUp(alone).who, SlotHolder(3));
}

class StrategiesTest : public SchedulerTest {};

// Two grow together until the node is full.
TEST_F(StrategiesTest, OutOfSlotsSaysWhoIsPreempted) {
  for (const bool toy : {false, true}) {
    SchedulerOptions options = SmallOptions(100);
    if (toy) {
      options.strategies.out_of_slots = sim::MakeLargestGivesUp;
    }
    Make(options);
    in_flight_.clear();
    events_ = {};
    ASSERT_TRUE(Submit(1, 30, 90).ok());
    ASSERT_TRUE(Submit(2, 40, 90).ok());  // Larger, and not the first.
    ASSERT_TRUE(Submit(3, 10, 90).ok());
    while (events_.preempted.empty()) {
      Plan();
      ASSERT_TRUE(StepDone());
    }
    EXPECT_THAT(events_.preempted, ElementsAre(toy ? 2 : 3));
    RunUntilIdle();
    for (const plan::SequenceId id : {1, 2, 3}) {
      ASSERT_NE(EndOf(id), nullptr);
      EXPECT_EQ(EndOf(id)->reason, plan::FinishReason::kLength);
    }
  }
}

TEST_F(StrategiesTest, StepPackingSaysWhatSharesAStep) {
  for (const bool toy : {false, true}) {
    SchedulerOptions options = SmallOptions();
    options.plan_ahead = 1;
    options.step_tokens_max = 16;
    if (toy) {
      options.strategies.step_packing = sim::MakePromptsGetHalf;
    }
    Make(options);
    in_flight_.clear();
    ASSERT_TRUE(Submit(1, 5, 40).ok());
    EXPECT_THAT(Plan(), SizeIs(1));
    StepDone();
    ASSERT_TRUE(Submit(2, 30, 40).ok());
    const std::vector<plan::StepPlan> plans = Plan();
    ASSERT_THAT(plans, SizeIs(1));
    EXPECT_THAT(plans[0].rows, SizeIs(1));
    ASSERT_THAT(plans[0].chunks, SizeIs(1));
    EXPECT_EQ(plans[0].chunks[0].tokens, toy ? 8u : 15u);
    RunUntilIdle();
  }
}

TEST_F(StrategiesTest, PlacementSaysWhoLivesWhere) {
  SchedulerOptions options = SmallOptions();
  options.lanes = 2;
  options.memory_nodes.push_back({.name = "b", .slots = 1000, .bandwidth_bytes_per_second = 1000});
  options.strategies.placement = sim::MakeInTurn;
  Make(options);
  for (plan::SequenceId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(Submit(id, 5, 40).ok());
  }
  std::vector<uint32_t> nodes;
  for (const plan::StepPlan& plan : Plan()) {
    EXPECT_THAT(plan.joins, SizeIs(2));
    for (const plan::SequenceJoin& join : plan.joins) {
      nodes.push_back(join.memory_node);
    }
  }
  EXPECT_THAT(nodes, testing::UnorderedElementsAre(0, 0, 1, 1));
  RunUntilIdle();
}

TEST_F(StrategiesTest, LanePackingSaysWhoChangesLanes) {
  for (const bool toy : {false, true}) {
    SchedulerOptions options = SmallOptions();
    options.lanes = 2;
    if (toy) {
      options.strategies.lane_packing = sim::MakeFirstRowsChange;
    }
    Make(options);
    in_flight_.clear();
    events_ = {};
    for (plan::SequenceId id = 1; id <= 4; ++id) {
      ASSERT_TRUE(Submit(id, 5, 40).ok());
    }
    RunUntilIdle();
    for (plan::SequenceId id = 1; id <= 4; ++id) {
      ASSERT_NE(EndOf(id), nullptr);
      EXPECT_EQ(EndOf(id)->reason, plan::FinishReason::kLength);
    }
    if (toy) {
      EXPECT_GT(scheduler_->Stats().lane_moves, 4u);
    } else {
      EXPECT_EQ(scheduler_->Stats().lane_moves, 0u);
    }
  }
}

// K and V of a token take 2 seconds on the link, its activation 1, making them 3.
constexpr RecomputeBytes kTokenBytes = {.kv = 2, .activation = 1};
constexpr FetchRates kFetchRates = {.bytes_per_second = 1, .recompute_seconds = 3};

class MiniBatchesTest : public testing::Test {
 protected:
  // Two lanes with four rows each.
  std::vector<LaneExchange> Choose(LanePacking& packing, const FetchRates& rates,
                                   plan::AttentionPath path = plan::AttentionPath::kHybrid) {
    const auto lanes = [this] {
      ++counted_;
      return std::vector<PackedLane>{PackedLane(4, row_), PackedLane(4, other_row_)};
    };
    return packing.Choose({.path = path, .lanes = lanes}, rates);
  }

  // The activations of both are in one.
  PackedRow row_{.activations = 16};
  PackedRow other_row_{.kv = 16};
  std::unique_ptr<LanePacking> packing_ = MakeMiniBatches(kTokenBytes);
  uint32_t counted_ = 0;
};

TEST_F(MiniBatchesTest, RowsChangeWhereLinkOrDeviceWouldWait) {
  const std::vector<LaneExchange> exchanges = Choose(*packing_, kFetchRates);
  ASSERT_THAT(exchanges, SizeIs(2));
  EXPECT_NE(exchanges[0].lane, exchanges[0].other_lane);
  // The device is busy with dense layers, or the link with weights, whatever is where.
  FetchRates dense = kFetchRates;
  dense.slice.slope = 1000;
  EXPECT_THAT(Choose(*packing_, dense), IsEmpty());
  FetchRates weights = kFetchRates;
  weights.weights_seconds = 1000;
  EXPECT_THAT(Choose(*packing_, weights), IsEmpty());
}

// 192 seconds of the compute node next to 128 of the link, and nothing next to nothing.
TEST_F(MiniBatchesTest, ActivationsThatStayTakeNoTimeOnTheLink) {
  row_ = {.resident = 16};
  EXPECT_THAT(Choose(*packing_, kFetchRates), IsEmpty());
  // From 192 next to 448 and 192 next to 0 to twice 192 next to 224, by way of 192 next to 336 and
  // 192 next to 112.
  other_row_ = {.activations = 16, .kv = 48};
  EXPECT_THAT(Choose(*packing_, kFetchRates), SizeIs(2));
}

TEST_F(MiniBatchesTest, RowsOfOtherPathsStayAndAllUntilRatesAreMeasured) {
  EXPECT_THAT(Choose(*packing_, {}), IsEmpty());
  EXPECT_THAT(Choose(*packing_, kFetchRates, plan::AttentionPath::kRemote), IsEmpty());
  EXPECT_THAT(Choose(*MakeRowsStay(), kFetchRates), IsEmpty());
  EXPECT_EQ(counted_, 0u);
}

TEST(LeastAttentionTimeTest, PromptsGoToThePrefillLaneWithMostTokensLeft) {
  const auto placement = MakeLeastAttentionTime();
  const std::vector<LaneLoad> lanes = {{.has_room = false, .tokens_left = 50},
                                       {.tokens_left = 10},
                                       {.tokens_left = 20},
                                       {.tokens_left = 20},
                                       {.open = false, .tokens_left = 30}};
  EXPECT_EQ(placement->LaneOfNewcomer(lanes, /*prefill=*/true), 2u);
  EXPECT_EQ(placement->LaneOfNewcomer({{.tokens_left = 0}}, /*prefill=*/true), std::nullopt);
}

}  // namespace
}  // namespace lamina::core
