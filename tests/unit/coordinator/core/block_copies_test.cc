// SPDX-License-Identifier: Apache-2.0
//
// Cached blocks that are copied to a spill tier, lose their slots, and are read back.

#include "coordinator/core/block_copies.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr uint32_t kRun = plan::kSpillBlockTokens;

class BlockCopiesTest : public PartsTest {
 protected:
  // Room for three runs and a token, and for `blocks` runs in the tier.
  void Make(uint32_t blocks, uint32_t slots = 3 * kRun + 1) {
    MakeNodes(
        {slots}, 2, 0, {}, /*keeps_prefixes=*/true, {},
        {.blocks = blocks,
         .rates = {.write_bytes_per_second = 1, .read_bytes_per_second = 1, .bytes_per_token = 1}});
  }

  // A run of equal tokens for each letter, and a token behind them.
  Sequence& Submit(const std::string& runs) {
    SequenceRequest request{.id = ++ids_};
    for (const char run : runs) {
      request.prompt.insert(request.prompt.end(), kRun, run);
    }
    request.prompt.push_back(1);
    request.tokens_max = static_cast<uint32_t>(request.prompt.size()) + 9;
    life_.Submit(request);
    return *life_.Find(request.id);
  }
  // Joins as Admission has it. Returns what the plan reads.
  std::vector<plan::SpillIn> Join(Sequence& sequence) {
    const plan::SequenceId id = sequence.request.id;
    const PrefixCache::Found found = cache_.Find(sequence, 0);
    cache_.MakeRoomFor(sequence, 0, sequence.tokens() - found.tokens);
    life_.Begin(sequence, /*lane=*/0, /*node=*/0);
    kv_.Open(id);
    kv_.BeginSpan(id, 0);
    cache_.Join(sequence, 0);
    EXPECT_TRUE(kv_.Append(id, sequence.join_tokens - sequence.cached_tokens).ok());
    const std::vector<PrefixCache::Read> reads = cache_.ReadBack(sequence, found.away);
    cache_.Announce(sequence);
    life_.Settle(sequence);
    std::vector<plan::SpillIn> spills;
    for (const PrefixCache::Read& read : reads) {
      spills.push_back(spills_.InBlocks(read.copy, sequence, read.first, read.skip, read.tokens));
    }
    sequence.restoring = !spills.empty();
    return spills;
  }
  void Finish(Sequence& sequence) {
    sequence.committed.push_back(2);
    sequence.planned_tokens = sequence.join_tokens + 1;
    sequence.chunked_tokens = sequence.join_tokens;
    life_.Decode(sequence);
    End(sequence);
  }
  void End(Sequence& sequence) {
    life_.End(sequence);
    borders_.Pass(0, borders_.Seal(0));
  }
  void Serve(const std::string& runs) {
    Sequence& sequence = Submit(runs);
    EXPECT_THAT(Join(sequence), IsEmpty());
    Finish(sequence);
  }
  std::vector<plan::SpillOut> Copy() {
    plan::StepPlan plan;
    cache_.CopyOut(plan);
    return plan.spills_out;
  }
  // The node says of a copy that it is written, or read, or could not be.
  void Report(uint64_t copy, bool ok = true) {
    const Spills::Done done = spills_.Take({.spill = copy, .ok = ok});
    ASSERT_EQ(done.blocks, copy);
    ok ? cache_.copies().Written(copy) : cache_.copies().Lose(copy);
  }
  PrefixCache::Found FoundBy(const std::string& runs) {
    Sequence& sequence = Submit(runs);
    const PrefixCache::Found found = cache_.Find(sequence, 0);
    life_.End(sequence);
    return found;
  }

  plan::SequenceId ids_ = 0;
};

TEST_F(BlockCopiesTest, NothingIsCopiedWhileManySlotsAreFree) {
  Make(8, 5 * kRun);
  Serve("abc");
  EXPECT_THAT(Copy(), IsEmpty());
}

TEST_F(BlockCopiesTest, RunsOfOneWayAreCopiedFromItsBeginningAndReadBack) {
  Make(8);
  Serve("abc");

  const std::vector<plan::SpillOut> out = Copy();

  ASSERT_THAT(out, SizeIs(3));
  for (const plan::SpillOut& spill : out) {
    EXPECT_EQ(spill.sequence, 0u);
    EXPECT_EQ(spill.tokens, kRun);
    EXPECT_EQ(spill.memory_node, 0u);
  }
  EXPECT_EQ(out[0].slots.front().first_slot, 0u) << "none is of use without those above it";
  EXPECT_THAT(Copy(), IsEmpty()) << "once is enough";
  ASSERT_TRUE(Audit().ok()) << Audit();
  for (const plan::SpillOut& spill : out) {
    Report(spill.spill);
  }

  Serve("xyz");  // Takes all slots.
  const PrefixCache::Found found = FoundBy("abc");
  EXPECT_EQ(found.tokens, 0u);
  EXPECT_EQ(found.away, 3 * kRun);
  EXPECT_EQ(FoundBy("abx").away, 2 * kRun);
  ASSERT_TRUE(Audit().ok()) << Audit();

  Sequence& again = Submit("abc");
  const std::vector<plan::SpillIn> in = Join(again);
  ASSERT_THAT(in, SizeIs(3));
  EXPECT_EQ(in[0].spill, out[0].spill);
  EXPECT_EQ(in[2].spill, out[2].spill);
  EXPECT_EQ(in[1].first, kRun);
  EXPECT_EQ(in[1].skip, 0u);
  EXPECT_EQ(again.cached_tokens, 3 * kRun);
  EXPECT_EQ(FoundBy("abc").pending, 3 * kRun);
  ASSERT_TRUE(Audit().ok()) << Audit();
  for (const plan::SpillIn& spill : in) {
    Report(spill.spill);
  }
  again.reading.clear();
  again.restoring = false;
  cache_.Stored(again, again.cached_tokens);
  EXPECT_EQ(FoundBy("abc").tokens, 3 * kRun);
  EXPECT_EQ(cache_.stats().tokens_read, 3 * kRun);
  Finish(again);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(BlockCopiesTest, APartOfARunIsReadWhereTheRestIsThere) {
  Make(8);
  Serve("abc");
  for (const plan::SpillOut& spill : Copy()) {
    Report(spill.spill);
  }
  // Half of the last run loses its slots.
  cache_.MakeRoom(0, kv_.directory().SlotsFree(0) + 2 * kCachedBlockTokens);
  ASSERT_EQ(FoundBy("abc").tokens, 2 * kRun + kRun / 2);

  const std::vector<plan::SpillIn> in = Join(Submit("abc"));

  ASSERT_THAT(in, SizeIs(1));
  EXPECT_EQ(in[0].first, 2 * kRun + kRun / 2);
  EXPECT_EQ(in[0].skip, kRun / 2);
  EXPECT_EQ(in[0].tokens, kRun / 2);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(BlockCopiesTest, WhatCannotBeReadIsForgottenWithAllBelowIt) {
  Make(8);
  Serve("abc");
  const std::vector<plan::SpillOut> out = Copy();
  for (const plan::SpillOut& spill : out) {
    Report(spill.spill);
  }
  Serve("xyz");
  Sequence& again = Submit("abc");
  Join(again);
  const uint64_t second = out[1].spill;

  std::erase(again.reading, second);
  Report(second, /*ok=*/false);
  life_.Preempt(again);
  ASSERT_TRUE(Audit().ok()) << Audit();
  borders_.Pass(0, borders_.Seal(0));
  Report(out[0].spill);
  ASSERT_EQ(spills_.Take({.spill = out[2].spill, .ok = true}).blocks, out[2].spill);

  const PrefixCache::Found found = FoundBy("abc");
  EXPECT_EQ(found.tokens, 0u);
  EXPECT_EQ(found.away, kRun);
  EXPECT_EQ(cache_.copies().count(), 1u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(BlockCopiesTest, AWayOfVeryManyBlocksIsForgottenWithoutACallForEach) {
  constexpr uint32_t kRuns = 50'000;  // A stack has no room for a call for each of their blocks.
  Make(2 * kRuns, kRuns * kRun + 1);
  const std::string runs(kRuns, 'a');
  Serve(runs);
  uint64_t first = 0;
  for (std::vector<plan::SpillOut> out = Copy(); !out.empty(); out = Copy()) {
    first = first == 0 ? out.front().spill : first;
    for (const plan::SpillOut& spill : out) {
      Report(spill.spill);
    }
  }
  ASSERT_EQ(cache_.copies().count(), kRuns);
  cache_.MakeRoom(0, kRuns * kRun + 1);
  ASSERT_EQ(FoundBy(runs).away, kRuns * kRun);

  cache_.copies().Lose(first);

  EXPECT_EQ(cache_.copies().count(), 0u);
  EXPECT_EQ(FoundBy(runs).away, 0u);
}

TEST_F(BlockCopiesTest, WhoLeavesBeforeItIsReadLeavesThemAway) {
  Make(8);
  Serve("abc");
  for (const plan::SpillOut& spill : Copy()) {
    Report(spill.spill);
  }
  Serve("xyz");
  Sequence& again = Submit("abc");
  const std::vector<plan::SpillIn> in = Join(again);
  End(again);
  EXPECT_EQ(FoundBy("abc").away, 0u) << "they are still being read";
  EXPECT_EQ(spills_.SlotsLeaving(0), 3 * kRun);
  ASSERT_TRUE(Audit().ok()) << Audit();

  for (const plan::SpillIn& spill : in) {
    Report(spill.spill);
  }

  EXPECT_EQ(FoundBy("abc").away, 3 * kRun);
  EXPECT_EQ(spills_.SlotsLeaving(0), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(BlockCopiesTest, SlotsLostWhileTheyAreWrittenComeFreeAfterwards) {
  Make(8);
  Serve("abc");
  const std::vector<plan::SpillOut> out = Copy();
  const uint32_t free = kv_.directory().SlotsFree(0);

  cache_.MakeRoom(0, free + kCachedBlockTokens);

  EXPECT_EQ(kv_.directory().SlotsFree(0), free);
  EXPECT_EQ(spills_.SlotsLeaving(0), kCachedBlockTokens) << "no more are dropped meanwhile";
  EXPECT_EQ(FoundBy("abc").away, 0u) << "nothing is written yet";
  ASSERT_TRUE(Audit().ok()) << Audit();
  const uint64_t leaving = spills_.SlotsLeaving(0);
  for (const plan::SpillOut& spill : out) {
    Report(spill.spill);
  }
  EXPECT_EQ(kv_.directory().SlotsFree(0), free + leaving);
  EXPECT_EQ(FoundBy("abc").away, leaving);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(BlockCopiesTest, CopiesTakeHalfOfTheTierAndTheOldestMakesRoom) {
  Make(4);
  Serve("abc");
  const std::vector<plan::SpillOut> first = Copy();
  ASSERT_THAT(first, SizeIs(2));
  for (const plan::SpillOut& spill : first) {
    Report(spill.spill);
  }
  EXPECT_THAT(Copy(), IsEmpty()) << "none is older than what is left";

  // The end of the way is lost, and what comes later takes the place of the copies.
  Serve("xyz");
  EXPECT_EQ(FoundBy("abc").away, 2 * kRun);
  EXPECT_THAT(Copy(), IsEmpty());
  const std::vector<plan::SpillDrop> drops = spills_.TakeDrops();
  ASSERT_THAT(drops, SizeIs(1));
  EXPECT_EQ(drops[0].spill, first[1].spill) << "the lower one";
  EXPECT_EQ(FoundBy("abc").away, kRun);
  spills_.Dropped(drops);
  EXPECT_THAT(Copy(), SizeIs(1));
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(BlockCopiesTest, ATierThatFailsIsLeftAlone) {
  Make(20);
  Serve("abc");
  for (const plan::SpillOut& spill : Copy()) {
    Report(spill.spill, /*ok=*/false);
  }
  EXPECT_EQ(cache_.copies().count(), 0u);
  EXPECT_THAT(Copy(), IsEmpty());
  EXPECT_TRUE(Audit().ok()) << Audit();
}

}  // namespace
}  // namespace lamina::core
