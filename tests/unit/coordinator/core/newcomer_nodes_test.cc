// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/newcomer_nodes.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/core/placement.h"
#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

constexpr uint32_t kSpan = 16;
constexpr uint32_t kSlots = 64;

// Sequences that are cut, on one node.
class NewcomerNodesTest : public PartsTest {
 protected:
  NewcomerNodesTest() { Make(); }
  void Make() { MakeNodes({kSlots}, /*lanes=*/1, kSpan, {}, /*keeps_prefixes=*/true); }

  static SchedulerOptions Options() {
    SchedulerOptions options;
    options.admission_headroom = 0;
    options.span_tokens = kSpan;
    options.prefix_cache = true;
    options.memory_nodes = {{.name = "a", .slots = kSlots, .bandwidth_bytes_per_second = 1}};
    return options;
  }

  Sequence& Prefilling(plan::SequenceId id, uint32_t tokens) {
    Sequence& sequence = Wait(id, tokens);
    life_.Begin(sequence, 0, 0);
    kv_.Open(id);
    while (kv_.TokensOf(id) < tokens) {
      kv_.BeginSpan(id, 0);
      const uint32_t left = tokens - kv_.TokensOf(id);
      EXPECT_TRUE(kv_.Append(id, std::min(kv_.RoomInSpan(id), left)).ok());
    }
    life_.Settle(sequence);
    return sequence;
  }
  // One that has decoded, and waits over the end of an epoch: what it has stored is kept of it, and
  // whole blocks in the cache too, in the same slots.
  Sequence& Kept(plan::SequenceId id, uint32_t tokens) {
    Sequence& sequence = Prefilling(id, tokens);
    sequence.chunked_tokens = tokens;
    sequence.planned_tokens = tokens + 1;
    sequence.committed.push_back(7);
    life_.Decode(sequence);
    Events events;
    life_.LeaveEpoch("", events);
    const std::vector<PrefixCache::Saved> blocks = cache_.Save();
    const std::vector<std::optional<uint32_t>> successors = {0};
    Make();
    cache_.Restore(blocks, successors);
    kept_.Restore(successors);
    return sequence;
  }
  // One that finds nothing of the others.
  Sequence& Newcomer(plan::SequenceId id, uint32_t tokens) {
    SequenceRequest request = Request(id, tokens);
    request.cache_salt = "another";
    life_.Submit(std::move(request));
    return *life_.Find(id);
  }

  const SchedulerOptions options_ = Options();
  std::unique_ptr<Placement> placement_ = MakeLeastAttentionTime();
  NewcomerNodes newcomers_{options_, life_, places_, *placement_};
};

TEST_F(NewcomerNodesTest, PartsOfWhoWaitsGoOnlyWhereThatSuffices) {
  const Sequence& waits = Kept(1, 33);
  Prefilling(2, 16);
  ASSERT_EQ(kept_.SlotsOn(0), 33u);
  ASSERT_EQ(cache_.UnusedOn(0), 32u) << "the same slots";
  ASSERT_EQ(kv_.directory().SlotsFree(0), 15u);

  Sequence& longer = Newcomer(3, 48);
  std::vector<uint32_t> nodes = newcomers_.Pick(longer, 0, /*found_min=*/0);
  EXPECT_THAT(nodes, ElementsAre(0, 0, 0));
  EXPECT_FALSE(newcomers_.MakeRoomFor(longer, nodes, {}, /*shares=*/true));
  EXPECT_THAT(kept_.PartsOf(waits), SizeIs(3));
  EXPECT_EQ(kv_.directory().SlotsFree(0), 15u);

  Sequence& shorter = Newcomer(4, 30);
  nodes = newcomers_.Pick(shorter, 0, /*found_min=*/0);
  EXPECT_THAT(nodes, ElementsAre(0, 0));
  EXPECT_TRUE(newcomers_.MakeRoomFor(shorter, nodes, {}, /*shares=*/true));
  EXPECT_THAT(kept_.PartsOf(waits), SizeIs(1));
  EXPECT_EQ(kv_.directory().SlotsFree(0), 32u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

}  // namespace
}  // namespace lamina::core
