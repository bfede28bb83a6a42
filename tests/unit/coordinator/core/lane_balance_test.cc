// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/lane_balance.h"

#include <memory>
#include <vector>

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

class LaneBalanceTest : public PartsTest {
 protected:
  LaneBalanceTest() {
    MakeNodes({100'000}, 2);
    steps_.Reset(2);
  }
  Sequence& Decode(plan::SequenceId id, uint32_t prompt, uint32_t lane) {
    Sequence& sequence = Run(id, prompt, lane);
    ++sequence.planned_tokens;
    life_.Decode(sequence);
    return sequence;
  }

  SchedulerOptions options_{.lanes = 2, .rows_max = 2};
  PlannedSteps steps_;
  LanePaths paths_{lanes_, life_};
  LaneBalance balance_{options_, lanes_, paths_, steps_, kv_};
};

// Notes what it is shown, and has the first rows of two lanes change places.
class FirstRowsChange final : public LanePacking {
 public:
  explicit FirstRowsChange(std::vector<PackedLane>& seen) : seen_(seen) {}
  absl::string_view name() const override { return "first rows change"; }
  std::vector<LaneExchange> Choose(const LanesToPack& to_pack, const FetchRates& rates) override {
    seen_ = to_pack.lanes();
    return rates.measured() ? std::vector<LaneExchange>{{.lane = 0, .other_lane = 1}}
                            : std::vector<LaneExchange>();
  }

 private:
  std::vector<PackedLane>& seen_;
};

class LanePackingTest : public LaneBalanceTest {
 protected:
  // Slots 16 to 31 of every 32 hold activations.
  SchedulerOptions WithPacking() {
    SchedulerOptions options{
        .lanes = 2, .rows_max = 2, .memory_nodes = {{.activation_share = 512}}};
    options.strategies.lane_packing = [this] { return std::make_unique<FirstRowsChange>(seen_); };
    return options;
  }
  // It has had a row in the first step of its lane, which is done.
  Sequence& DecodeOn(plan::SequenceId id, uint32_t prompt, uint32_t lane) {
    Sequence& sequence = Decode(id, prompt, lane);
    sequence.last_step = 1;
    return sequence;
  }

  static constexpr FetchRates kRates = {.bytes_per_second = 1, .recompute_seconds = 1};
  std::vector<PackedLane> seen_;
  SchedulerOptions packed_ = WithPacking();
  LaneBalance packing_{packed_, lanes_, paths_, steps_, kv_};
};

TEST_F(LanePackingTest, RowsChangePlacesAndAreCountedByTheKindOfTheirSlots) {
  const Sequence& one = DecodeOn(1, 40, 0);
  const Sequence& other = DecodeOn(2, 40, 1);
  DecodeOn(3, 30, 0);
  DecodeOn(4, 30, 1);
  for (const uint32_t lane : {0u, 1u}) {
    steps_.Add(lane, {.step = 1});
    steps_.TakeOldest(lane);
  }
  packing_.Balance(0, kRates);

  EXPECT_EQ(packing_.moves(), 2u);
  EXPECT_EQ(one.lane, 1u);
  EXPECT_EQ(other.lane, 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
  ASSERT_EQ(seen_.size(), 2u);
  ASSERT_EQ(seen_[0].size(), 2u);
  ASSERT_EQ(seen_[1].size(), 2u);
  // Its slots are the first forty: one block of activations, and two of K and V, half of the last.
  EXPECT_EQ(seen_[0][0].activations, 16u);
  EXPECT_EQ(seen_[0][0].kv, 24u);
  uint32_t tokens = 0;
  for (const PackedLane& lane : seen_) {
    for (const PackedRow& row : lane) {
      EXPECT_TRUE(row.may_move);
      tokens += row.activations + row.kv;
    }
  }
  EXPECT_EQ(tokens, 2 * (40u + 30u));
}

// The second block of its slots holds activations, of tokens 16 to 31.
TEST_F(LanePackingTest, ActivationsThatStayAreCountedApart) {
  Sequence& one = DecodeOn(1, 40, 0);
  DecodeOn(2, 40, 1);
  const auto expect_row = [this](uint32_t activations, uint32_t kv, uint32_t resident) {
    packing_.Balance(0);
    ASSERT_EQ(seen_.size(), 2u);
    EXPECT_EQ(seen_[0][0].activations, activations);
    EXPECT_EQ(seen_[0][0].kv, kv);
    EXPECT_EQ(seen_[0][0].resident, resident);
  };
  one.resident = {.first = 0, .tokens = 16};
  expect_row(16, 24, 0);
  one.resident = {.first = 0, .tokens = 20};
  expect_row(12, 24, 4);
  one.resident = {.first = 20, .tokens = 100};
  expect_row(4, 24, 12);
  one.resident = {.first = 40, .tokens = 100};
  expect_row(16, 24, 0);
  // Places are those of tokens, which keep their numbers when a window has left the first behind.
  one.resident = {.first = 20, .tokens = 6};
  kv_.ReleaseFirst(1, 18, /*ticket=*/1);
  expect_row(8, 8, 6);
}

// Spans of 32 tokens lie on two nodes, each from its first slot on.
TEST_F(LanePackingTest, SlotsOfACutSequenceAreThoseOfAllItsSpans) {
  MakeNodes({1000, 1000}, 2, /*span_tokens=*/32);
  packed_.span_tokens = 32;
  packed_.memory_nodes = {{.activation_share = 512}, {.activation_share = 512}};
  Sequence& one = DecodeOn(1, 32, 0);
  kv_.BeginSpan(1, 1);
  ASSERT_TRUE(kv_.Append(1, 20).ok());
  DecodeOn(2, 20, 1);

  packing_.Balance(0);
  ASSERT_EQ(seen_.size(), 2u);
  EXPECT_EQ(seen_[0][0].activations, 16u + 4u);
  EXPECT_EQ(seen_[0][0].kv, 16u + 16u);
  EXPECT_EQ(seen_[0][0].resident, 0u);

  one.resident = {.first = 24, .tokens = 28};
  packing_.Balance(0);
  EXPECT_EQ(seen_[0][0].activations, 8u);
  EXPECT_EQ(seen_[0][0].resident, 8u + 4u);
  kv_.ReleaseFirst(1, 40, /*ticket=*/1);
  packing_.Balance(0);
  EXPECT_EQ(seen_[0][0].kv, 8u);
  EXPECT_EQ(seen_[0][0].resident, 4u);
}

TEST_F(LanePackingTest, WhoHasJustComeHasARowFirst) {
  Decode(1, 40, 0);
  DecodeOn(2, 40, 1);
  packing_.Balance(0);
  ASSERT_EQ(seen_.size(), 2u);
  EXPECT_FALSE(seen_[0][0].may_move);
  EXPECT_TRUE(seen_[1][0].may_move);
  EXPECT_EQ(packing_.moves(), 0u);
}

TEST_F(LaneBalanceTest, ASequenceMovesFromTheLaneWithMostWorkToTheOneWithLeast) {
  Decode(1, 4000, 0);
  Sequence& second = Decode(2, 4000, 0);
  balance_.Balance(0);

  EXPECT_EQ(balance_.moves(), 1u);
  EXPECT_EQ(lanes_[1].running.size(), 1u);
  EXPECT_EQ(second.lane + life_.Find(1)->lane, 1u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(LaneBalanceTest, ItMovesOnlyWhenItsPlannedStepsAreDone) {
  Decode(1, 4000, 0).last_step = 1;
  Decode(2, 4000, 0).last_step = 1;
  steps_.Add(0, {.step = 1});
  balance_.Balance(0);
  EXPECT_EQ(balance_.moves(), 0u);
  EXPECT_EQ(lanes_.moving(), 1u);

  steps_.TakeOldest(0);
  balance_.Balance(0);
  EXPECT_EQ(balance_.moves(), 1u);
  EXPECT_EQ(lanes_.moving(), 0u);
}

TEST_F(LaneBalanceTest, AHeldLaneTakesAllAsFarAsThereIsRoom) {
  Decode(1, 10, 0);
  Decode(2, 10, 1);
  Decode(3, 10, 1);
  balance_.HoldLanes(1, "said the test");
  balance_.Balance(0);

  EXPECT_EQ(balance_.count().why, "1, said the test");
  EXPECT_EQ(lanes_[0].running.size(), 2u);
  EXPECT_FALSE(balance_.HasRoomForRow(0));
  EXPECT_FALSE(balance_.HasRoomForRow(1));
}

}  // namespace
}  // namespace lamina::core
