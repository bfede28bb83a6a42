// SPDX-License-Identifier: Apache-2.0
//
// Sequences cut into spans: their slots, and how the scheduler spreads them.
#include "coordinator/core/sequence_kv.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

using ::testing::HasSubstr;

TEST(SequenceKvTest, UncutIsOneSpan) {
  SequenceKv kv({.slots = {100}}, 0);
  kv.Open(7);
  EXPECT_EQ(kv.RoomInSpan(7), 0u);
  kv.BeginSpan(7, 0);
  EXPECT_EQ(kv.RoomInSpan(7), UINT32_MAX);
  const auto allocated = kv.Append(7, 100);
  ASSERT_TRUE(allocated.ok()) << allocated.status();
  EXPECT_EQ(kv.TokensOf(7), 100u);
  EXPECT_EQ(kv.Append(7, 1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

// Tokens without activations stay so for whoever shares their slots, and are the first ones.
TEST(SequenceKvTest, WhoSharesSlotsHasTheirBareTokens) {
  SequenceKv kv({.slots = {1000, 100}}, 0);
  const auto open = [&kv](SlotHolder holder, uint32_t bare, uint32_t tokens) {
    kv.Open(holder, bare);
    kv.BeginSpan(holder, 0);
    ASSERT_TRUE(tokens == 0 || kv.Append(holder, tokens).ok());
  };
  open(1, SequenceKv::kAllBare, 48);
  open(2, 0, 48);
  EXPECT_EQ(kv.BareOf(1), 48u);
  EXPECT_EQ(kv.BareOf(2), 0u);

  open(3, 0, 0);
  kv.Share(2, 0, 16, 3);
  EXPECT_EQ(kv.BareOf(3), 0u);
  kv.Share(1, 16, 16, 3);
  EXPECT_EQ(kv.BareOf(3), 32u) << "the last bare one counts";
  kv.Share(2, 32, 16, 3);
  ASSERT_TRUE(kv.Append(3, 20).ok());
  EXPECT_EQ(kv.BareOf(3), 32u) << "its own have activations";

  open(4, 0, 0);
  kv.Share(3, 16, 32, 4);
  EXPECT_EQ(kv.BareOf(4), 16u);
  open(5, 0, 0);
  kv.Share(3, 32, 16, 5);
  EXPECT_EQ(kv.BareOf(5), 0u);

  kv.Fork(3, 6, 60);
  kv.Fork(3, 7, 20);
  kv.Fork(1, 8, 20);
  ASSERT_TRUE(kv.Append(7, 10).ok());
  ASSERT_TRUE(kv.Append(8, 10).ok());
  EXPECT_EQ(kv.BareOf(6), 32u);
  EXPECT_EQ(kv.BareOf(7), 20u);
  EXPECT_EQ(kv.BareOf(8), 30u) << "a fork's own are as its parent's";

  EXPECT_EQ(kv.Get(3)->BareIn(16, 32), 16u) << "as a kept block is told";
  EXPECT_EQ(kv.Get(3)->BareIn(32, 16), 0u);
  kv.Open(9);
  kv.BeginSpan(9, 1);  // Where nobody else has slots.
  kv.ShareKept(*kv.ClaimKept(1, {{40, 16}}), 9);
  EXPECT_EQ(kv.BareOf(9), 0u);
  kv.ShareKept(*kv.ClaimKept(1, {{60, 16}}), 9, 5);
  EXPECT_EQ(kv.BareOf(9), 21u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(SequenceKvTest, WhatIsReleasedIsFreeOnceItsTicketComesBack) {
  SequenceKv kv({.slots = {1000}}, 0);
  kv.Open(7);
  kv.BeginSpan(7, 0);
  ASSERT_TRUE(kv.Append(7, 600).ok());
  const std::vector<HeldExtent> fork = kv.Fork(7, 8, 300);

  kv.ReleaseFirst(7, 256, /*ticket=*/1);
  kv.ReleaseFirst(7, 512, /*ticket=*/2);

  EXPECT_EQ(kv.TokensOf(7), 600u);
  EXPECT_EQ(kv.SlotsOn(7, 0), 88u);
  EXPECT_EQ(kv.directory().ExtentsOf({7, 0}), (std::vector<Extent>{{512, 88}}));
  EXPECT_EQ(kv.directory().SlotsQuarantined(0), 212u);  // The fork has the first 300.
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
  kv.Recycle(2);
  EXPECT_EQ(kv.directory().SlotsFree(0), 612u);
  ASSERT_TRUE(kv.Append(7, 10).ok());
  kv.Release(8, /*ticket=*/3);
  kv.Release(7, /*ticket=*/3);
  kv.Recycle(3);
  EXPECT_EQ(kv.directory().SlotsFree(0), 744u);  // Those that ticket 1 knows are still to come.
  kv.Recycle(1);
  EXPECT_EQ(kv.directory().SlotsFree(0), 1000u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(SequenceKvTest, SpansThatAreReleasedHaveNoSlotsAndGoOnBehind) {
  SequenceKv kv({.slots = {512, 512}}, 256);
  kv.Open(7);
  for (const uint32_t node : {0u, 0u, 1u}) {
    kv.BeginSpan(7, node);
    ASSERT_TRUE(kv.Append(7, node == 1 ? 100 : 256).ok());
  }
  kv.ReleaseFirst(7, 512, /*ticket=*/1);
  EXPECT_EQ(kv.SlotsOn(7, 0), 0u);
  EXPECT_EQ(kv.SlotsOn(7, 1), 100u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
  kv.Recycle(1);
  EXPECT_EQ(kv.directory().SlotsFree(0), 512u);
  ASSERT_TRUE(kv.Append(7, 156).ok());
  kv.BeginSpan(7, 0);
  ASSERT_TRUE(kv.Append(7, 1).ok());
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(SequenceKvTest, SpansLieWhereTheyBegan) {
  SequenceKv kv({.slots = {1000, 1000}}, 256);
  kv.Open(7);
  for (const uint32_t node : {1u, 0u, 1u}) {
    kv.BeginSpan(7, node);
    EXPECT_EQ(kv.RoomInSpan(7), 256u);
    const auto allocated = kv.Append(7, 256);
    ASSERT_TRUE(allocated.ok()) << allocated.status();
    for (const HeldExtent& held : *allocated) {
      EXPECT_EQ(held.memory_node, node);
    }
    EXPECT_EQ(kv.RoomInSpan(7), 0u);
  }
  EXPECT_EQ(kv.SlotsOn(7, 0), 256u);
  EXPECT_EQ(kv.SlotsOn(7, 1), 512u);
  const std::vector<HeldExtent> shared = kv.Fork(7, 8, 300);
  EXPECT_EQ(kv.SlotsOn(8, 1), 256u);
  EXPECT_EQ(kv.SlotsOn(8, 0), 44u);
  EXPECT_EQ(kv.RoomInSpan(8), 212u);
  EXPECT_EQ(shared.front().memory_node, 1u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
  kv.Release(7, 1);
  kv.Recycle(1);
  EXPECT_EQ(kv.directory().SlotsFree(0), 956u);
  EXPECT_EQ(kv.directory().SlotsFree(1), 744u);
  kv.Release(8, 2);
  kv.Recycle(2);
  EXPECT_EQ(kv.directory().SlotsFree(1), 1000u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(SequenceKvTest, WhatIsKeptOfSpansLiesWhereTheyDo) {
  SequenceKv kv({.slots = {100, 100}}, 32);
  kv.Open(7);
  for (const uint32_t node : {0u, 1u}) {
    kv.BeginSpan(7, node);
    ASSERT_TRUE(kv.Append(7, 32).ok());
  }
  std::vector<OpenSpan*> kept(3);
  kv.Keep(7, *kv.Get(7), /*first=*/16, /*tokens=*/16, absl::MakeSpan(kept));
  const uint32_t second = kv.directory().ExtentsOf(HeldSpan(SlotHolder(7), 1)).front().first_slot;
  const std::vector<uint32_t> nodes = {0, 1, 1};
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(KvDirectory::NodeOf(*kept[i]), nodes[i]) << i;
    EXPECT_EQ(KvDirectory::TokensOf(*kept[i]), 16u) << i;
  }
  EXPECT_EQ(KvDirectory::ExtentsOf(*kept[1]).front().first_slot, second);
  EXPECT_EQ(KvDirectory::ExtentsOf(*kept[2]).front().first_slot, second + 16);
  kv.Release(7, 1);
  kv.Recycle(1);
  EXPECT_EQ(kv.directory().SlotsFree(0), 84u);
  EXPECT_EQ(kv.directory().SlotsFree(1), 68u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
  for (OpenSpan* const span : kept) {
    kv.ReleaseKept(span);
  }
  EXPECT_EQ(kv.directory().SlotsFree(0), 100u);
  EXPECT_EQ(kv.directory().SlotsFree(1), 100u);
}

TEST(SequenceKvTest, HoldersOfOtherKindsShareSlotsWithSequences) {
  constexpr auto kOther = static_cast<HolderKind>(7);
  SequenceKv kv({.slots = {1000}}, 256);
  kv.Open(7);
  for (int span = 0; span < 2; ++span) {
    kv.BeginSpan(7, 0);
    ASSERT_TRUE(kv.Append(7, 256).ok());
  }
  // The prefix outlives the sequence, whose id it has, and a later one takes it over.
  kv.Fork(7, {kOther, 7}, 300);
  kv.Release(7, 1);
  kv.Recycle(1);
  EXPECT_EQ(kv.directory().SlotsFree(0), 700u);
  kv.Fork({kOther, 7}, 8, 300);
  EXPECT_EQ(kv.holders(), 2u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
  kv.Release({kOther, 7}, 2);
  kv.Recycle(2);
  EXPECT_EQ(kv.TokensOf(8), 300u);
  EXPECT_EQ(kv.directory().SlotsFree(0), 700u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(SpanTokensTest, ArePowersOfTwoOfBlocksAndAtMostEight) {
  EXPECT_EQ(SpanTokensFor(2), 256u);
  EXPECT_EQ(SpanTokensFor(2048), 256u);
  EXPECT_EQ(SpanTokensFor(2049), 512u);
  EXPECT_EQ(SpanTokensFor(8192), 1024u);
  EXPECT_EQ(SpanTokensFor(1048576), 131072u);
}

TEST(CheckSpansTest, SaysWhatIsMissing) {
  const std::vector<MemoryNodeShare> nodes = {{.name = "big", .slots = 600},
                                              {.name = "small", .slots = 255}};
  EXPECT_THAT(std::string(CheckSpans(nodes, 256, 700).message()),
              HasSubstr("memory node small has room for 255 tokens"));
  EXPECT_THAT(std::string(CheckSpans({nodes[0]}, 256, 513).message()),
              HasSubstr("room for 512 tokens in spans of 256"));
  EXPECT_TRUE(CheckSpans({nodes[0]}, 256, 512).ok());
}

class SchedulerSpansTest : public SchedulerTest {
 protected:
  void MakeNodes(const std::vector<uint32_t>& slots) {
    SchedulerOptions options{.rows_max = 16,
                             .step_tokens_max = 256,
                             .chunk_tokens = 256,
                             .scratch_tokens = 4096,
                             .sequence_tokens_max = 2048,
                             .admission_headroom = 4,
                             .span_tokens = 256};
    for (size_t i = 0; i < slots.size(); ++i) {
      options.memory_nodes.push_back({.name = std::string(1, static_cast<char>('a' + i)),
                                      .slots = slots[i],
                                      .bandwidth_bytes_per_second = 1});
    }
    Make(options);
  }
};

TEST_F(SchedulerSpansTest, ALongSequenceIsSpreadEvenly) {
  MakeNodes({2000, 2000});
  ASSERT_TRUE(Submit(1, 1000, 1100).ok());
  std::vector<uint32_t> allocated(2);
  while (EndOf(1) == nullptr) {
    for (const plan::StepPlan& plan : Plan()) {
      for (const plan::SlotAllocation& allocation : plan.allocations) {
        allocated[allocation.memory_node] += allocation.extent.tokens;
      }
    }
    ASSERT_TRUE(StepDone());
  }
  EXPECT_EQ(allocated[0] + allocated[1], 1099u);
  EXPECT_EQ(std::max(allocated[0], allocated[1]), 587u);  // 2 of 5 spans, of which the last has 75.
  EXPECT_EQ(IndicesOf(1).size(), 100u);
}

TEST_F(SchedulerSpansTest, ASequenceMayBeLongerThanAnyNode) {
  MakeNodes({600, 600, 300});
  EXPECT_THAT(std::string(Submit(1, 1000, 1400).message()),
              HasSubstr("the memory nodes have room for 1280"));
  ASSERT_TRUE(Submit(2, 1000, 1281).ok());
  RunUntilIdle();
  EXPECT_EQ(IndicesOf(2).size(), 281u);
  for (uint32_t node = 0; node < 3; ++node) {
    EXPECT_EQ(scheduler_->kv().SlotsFree(node), node == 2 ? 300u : 600u);
  }
}

TEST_F(SchedulerSpansTest, EveryOneEndsWhenSlotsRunOut) {
  MakeNodes({520, 520, 300});
  for (plan::SequenceId id = 1; id <= 12; ++id) {
    ASSERT_TRUE(
        Submit(id, 20 + 7 * static_cast<uint32_t>(id), 600 + 50 * static_cast<uint32_t>(id % 5))
            .ok());
  }
  RunUntilIdle();
  EXPECT_GT(scheduler_->Stats().preemptions, 0u);
  for (plan::SequenceId id = 1; id <= 12; ++id) {
    ASSERT_NE(EndOf(id), nullptr);
    EXPECT_EQ(EndOf(id)->reason, plan::FinishReason::kLength);
    EXPECT_EQ(IndicesOf(id).size(), 600 + 50 * (id % 5) - (20 + 7 * id));
  }
}

TEST_F(SchedulerSpansTest, ASequenceWithASpanOnALostNodeIsRecomputedOnTheOthers) {
  MakeNodes({2000, 2000});
  ASSERT_TRUE(Submit(1, 1000, 1100).ok());
  ASSERT_TRUE(Submit(2, 10, 1100).ok());
  for (int i = 0; i < 12; ++i) {
    Plan();
    ASSERT_TRUE(StepDone());
  }
  scheduler_->StartEpoch(2, {{.name = "a", .slots = 2000, .bandwidth_bytes_per_second = 1}}, {"b"},
                         events_);
  EXPECT_EQ(EndOf(1), nullptr);
  EXPECT_EQ(EndOf(2), nullptr);
  in_flight_.clear();
  RunUntilIdle();
  EXPECT_THAT(IndicesOf(1), testing::SizeIs(100));
  EXPECT_THAT(IndicesOf(2), testing::SizeIs(1090));
}

}  // namespace
}  // namespace lamina::core
