// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/kept_sequences.h"

#include <gmock/gmock.h>

#include <optional>
#include <vector>

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

constexpr uint32_t kSpan = 16;

// First token and number of tokens of each part.
std::vector<std::pair<uint32_t, uint32_t>> Ranges(absl::Span<const KeptSequences::Part> parts) {
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  for (const KeptSequences::Part& part : parts) {
    ranges.emplace_back(part.first, part.tokens);
  }
  return ranges;
}

class KeptSequencesTest : public PartsTest {
 protected:
  KeptSequencesTest() { MakeNodes({100, 100, 100}, 1, kSpan); }

  // One in prefill, whose spans lie on these nodes.
  Sequence& Prefilling(plan::SequenceId id, uint32_t tokens, const std::vector<uint32_t>& nodes) {
    Wait(id, tokens);
    return Join(*life_.Find(id), nodes);
  }
  Sequence& Decoding(plan::SequenceId id, uint32_t tokens, const std::vector<uint32_t>& nodes) {
    Sequence& sequence = Prefilling(id, tokens, nodes);
    sequence.chunked_tokens = tokens;
    sequence.planned_tokens = tokens + 1;
    sequence.committed.push_back(7);
    life_.Decode(sequence);
    return sequence;
  }
  // It shares what is kept of it; the slots that it found so are in `found_`.
  Sequence& Join(Sequence& sequence, const std::vector<uint32_t>& nodes) {
    const plan::SequenceId id = sequence.request.id;
    life_.Begin(sequence, 0, nodes.back());
    kv_.Open(id);
    found_.clear();
    for (const uint32_t node : nodes) {
      kv_.BeginSpan(id, node);
      for (const HeldExtent& held : kept_.JoinSpan(sequence)) {
        EXPECT_EQ(held.memory_node, node);
        found_.push_back(held.extent);
      }
      const uint32_t left = sequence.join_tokens - kv_.TokensOf(id);
      EXPECT_TRUE(kv_.Append(id, std::min(kv_.RoomInSpan(id), left)).ok());
    }
    life_.Settle(sequence);
    return sequence;
  }
  std::vector<Extent> SlotsOf(plan::SequenceId id, uint32_t span) const {
    const auto extents = kv_.directory().ExtentsOf(HeldSpan(id, span));
    return {extents.begin(), extents.end()};
  }

  // Node i of before is node successors[i] now.
  void BeginEpoch(const std::vector<std::optional<uint32_t>>& successors, uint32_t nodes) {
    Events events;
    life_.LeaveEpoch("", events);
    MakeNodes(std::vector<uint32_t>(nodes, 100), 1, kSpan);
    kept_.Restore(successors);
    EXPECT_TRUE(Audit().ok()) << Audit();
  }

  std::vector<Extent> found_;
};

TEST_F(KeptSequencesTest, OnlyWhatLayOnALostNodeIsMissing) {
  Sequence& sequence = Decoding(1, 40, {0, 1, 2});
  const std::vector<Extent> first = SlotsOf(1, 0);
  const std::vector<Extent> last = SlotsOf(1, 2);
  BeginEpoch({0, std::nullopt, 1}, 2);

  EXPECT_THAT(Ranges(kept_.PartsOf(sequence)), ElementsAre(Pair(0, 16), Pair(32, 8)));
  EXPECT_EQ(kept_.NextMissing(sequence, 0), 16u);
  EXPECT_EQ(kept_.EndOfMissing(sequence, 16), 32u);
  EXPECT_EQ(kept_.NextMissing(sequence, 32), 40u);
  EXPECT_EQ(kept_.EndOfMissing(sequence, 40), 41u);
  EXPECT_EQ(kept_.SlotsOn(0), 16u);
  EXPECT_EQ(kept_.SlotsOn(1), 8u);
  EXPECT_EQ(kv_.directory().SlotsFree(0), 84u);

  Join(sequence, {0, 1, 1});
  std::vector<Extent> expected = first;
  expected.insert(expected.end(), last.begin(), last.end());
  EXPECT_EQ(found_, expected);
  EXPECT_EQ(kept_.SlotsOn(0) + kept_.SlotsOn(1), 0u);
  EXPECT_EQ(kept_.tokens_asked(), 41u);
  EXPECT_EQ(kept_.tokens_found(), 24u);
  EXPECT_EQ(kv_.directory().SpansKept(), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

// Those that are computed before a bare one count as bare.
TEST_F(KeptSequencesTest, BareTokensOfAPartAreBareWhereverItIsJoined) {
  Sequence& sequence = Decoding(1, 40, {0, 1, 2});
  sequence.held->bare = 20;
  BeginEpoch({std::nullopt, 0, 1}, 2);

  const auto parts = kept_.PartsOf(sequence);
  ASSERT_THAT(Ranges(parts), ElementsAre(Pair(16, 16), Pair(32, 8)));
  EXPECT_EQ(parts[0].bare, 4u);
  EXPECT_EQ(parts[1].bare, 0u);
  Join(sequence, {1, 0, 1});
  EXPECT_EQ(kv_.BareOf(1), 20u);
}

TEST_F(KeptSequencesTest, SpansThatFollowEachOtherAreOneStretch) {
  Sequence& sequence = Decoding(1, 40, {0, 1, 0});
  BeginEpoch({0, 1}, 2);
  EXPECT_EQ(kept_.NextMissing(sequence, 0), 40u);
}

TEST_F(KeptSequencesTest, OfAPromptIsKeptWhatIsStored) {
  Sequence& sequence = Prefilling(1, 60, {0, 1, 2, 0});
  kept_.Stored(sequence, 0, 10);
  kept_.Stored(sequence, 10, 10);
  EXPECT_EQ(kept_.NextMissing(sequence, 25), 25u) << "others are under way";
  EXPECT_EQ(kept_.EndOfMissing(sequence, 25), 60u);
  BeginEpoch({0, 1, 2}, 3);
  EXPECT_THAT(Ranges(kept_.PartsOf(sequence)), ElementsAre(Pair(0, 16), Pair(16, 4)));

  // It fills a hole, and the epoch ends again.
  BeginEpoch({std::nullopt, 1, 2}, 3);
  EXPECT_THAT(Ranges(kept_.PartsOf(sequence)), ElementsAre(Pair(16, 4)));
  Join(sequence, {0, 1, 2, 0});
  kept_.Stored(sequence, 0, 16);
  kept_.Stored(sequence, 20, 15);
  BeginEpoch({0, 1, 2}, 3);
  EXPECT_THAT(Ranges(kept_.PartsOf(sequence)), ElementsAre(Pair(0, 16), Pair(16, 16), Pair(32, 3)));
  EXPECT_EQ(kept_.NextMissing(sequence, 0), 35u);
}

// Where K and V are INT8, slots have nothing of a block that is not whole.
TEST_F(KeptSequencesTest, OfAnOpenBlockNothingIsKept) {
  kept_.Reset(3, kSpan, /*block_tokens=*/4);
  Sequence& decoding = Decoding(1, 39, {0, 1, 2});
  Sequence& other = Decoding(2, 35, {0, 1, 2});
  Sequence& prompt = Prefilling(3, 60, {0, 1, 2, 0});
  kept_.Stored(prompt, 0, 10);
  BeginEpoch({0, 1, 2}, 3);
  EXPECT_THAT(Ranges(kept_.PartsOf(decoding)), ElementsAre(Pair(0, 16), Pair(16, 16), Pair(32, 4)));
  EXPECT_THAT(Ranges(kept_.PartsOf(other)), ElementsAre(Pair(0, 16), Pair(16, 16)));
  EXPECT_THAT(Ranges(kept_.PartsOf(prompt)), ElementsAre(Pair(0, 8)));
  EXPECT_EQ(kept_.SlotsOn(2), 4u);

  Join(prompt, {0, 1, 2, 0});
  kept_.Stored(prompt, 8, 30);
  EXPECT_EQ(kept_.NextMissing(prompt, 0), 38u);
}

TEST_F(KeptSequencesTest, PartsOfTheLastInServiceOrderGiveWayFirst) {
  Sequence& first = Decoding(1, 40, {0, 0, 1});
  Sequence& second = Decoding(2, 40, {0, 1, 0});
  Sequence& third = Decoding(3, 30, {1, 0});
  BeginEpoch({0, 1}, 2);
  EXPECT_EQ(kept_.SlotsOn(0), 32u + 24u + 14u);

  kept_.MakeRoom(0, 30);
  EXPECT_EQ(kept_.SlotsOn(0), 70u) << "so many are free";
  kept_.MakeRoom(0, 31);
  EXPECT_THAT(Ranges(kept_.PartsOf(third)), ElementsAre(Pair(0, 16)));
  EXPECT_EQ(kept_.SlotsOn(0), 56u);
  kept_.MakeRoom(0, 45);
  EXPECT_THAT(Ranges(kept_.PartsOf(second)), ElementsAre(Pair(0, 16), Pair(16, 16)));
  kept_.MakeRoom(0, 100, &first);
  EXPECT_THAT(Ranges(kept_.PartsOf(second)), ElementsAre(Pair(16, 16)));
  EXPECT_THAT(kept_.PartsOf(first), SizeIs(3));
  EXPECT_EQ(kv_.directory().SlotsFree(0), 68u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(KeptSequencesTest, WhoEndsOrIsForgottenHoldsNothing) {
  Decoding(1, 40, {0, 1, 2});
  Sequence& other = Decoding(2, 40, {0, 1, 2});
  BeginEpoch({0, 1, 2}, 3);
  life_.End(*life_.Find(1));
  EXPECT_EQ(kept_.SlotsOn(2), 8u);
  kept_.Forget(1);
  EXPECT_THAT(Ranges(kept_.PartsOf(other)), ElementsAre(Pair(0, 16), Pair(32, 8)));
  EXPECT_EQ(kv_.directory().SlotsFree(1), 100u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(KeptSequencesTest, ForksShareWhatTheyHaveInCommonStill) {
  Sequence& parent = Decoding(1, 32, {0, 1});
  Wait(2, 32);
  Sequence& fork = *life_.Find(2);
  life_.Begin(fork, 0, 1);
  kv_.Fork(1, 2, 32);
  life_.Settle(fork);
  fork.chunked_tokens = 32;
  fork.planned_tokens = 33;
  fork.committed.push_back(8);
  life_.Decode(fork);
  BeginEpoch({0, 1}, 2);

  EXPECT_EQ(kept_.SlotsOn(0), 32u);
  EXPECT_EQ(kv_.directory().SlotsFree(0), 84u);
  Join(fork, {0, 1, 0});
  EXPECT_EQ(kv_.directory().SlotsFree(0), 83u);
  EXPECT_THAT(kept_.PartsOf(parent), SizeIs(2));
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(KeptSequencesTest, NothingIsKeptOfWhoHasGivenUpItsSlots) {
  Sequence& preempted = Decoding(1, 40, {0, 1, 2});
  life_.Preempt(preempted);
  Sequence& prompt = Prefilling(2, 20, {0, 1});
  BeginEpoch({0, 1, 2}, 3);
  EXPECT_THAT(kept_.PartsOf(preempted), IsEmpty());
  EXPECT_THAT(kept_.PartsOf(prompt), IsEmpty());
  EXPECT_EQ(kv_.directory().SpansKept(), 0u);
}

TEST_F(KeptSequencesTest, WhereNothingIsCutFromNowOnNothingIsKept) {
  Sequence& sequence = Decoding(1, 40, {0, 1, 2});
  Events events;
  life_.LeaveEpoch("", events);
  MakeNodes({100, 100, 100}, 1, 0);
  kept_.Restore({0, 1, 2});
  EXPECT_THAT(kept_.PartsOf(sequence), IsEmpty());
  EXPECT_EQ(kv_.directory().SlotsFree(0), 100u);
}

constexpr uint32_t kBlock = kCachedBlockTokens;

// Sequences that are not cut: the prefix cache has their whole blocks.
class KeptOpenBlocksTest : public PartsTest {
 protected:
  KeptOpenBlocksTest() { Make(2); }
  void Make(uint32_t nodes) {
    MakeNodes(std::vector<uint32_t>(nodes, 200), 1, 0, {}, /*keeps_prefixes=*/true);
  }
  Sequence& Decoding(plan::SequenceId id, uint32_t tokens, uint32_t node = 0) {
    Sequence& sequence = Run(id, tokens, 0, node);
    sequence.chunked_tokens = tokens;
    sequence.planned_tokens = tokens + 1;
    sequence.committed.push_back(7);
    life_.Decode(sequence);
    return sequence;
  }
  void BeginEpoch(const std::vector<std::optional<uint32_t>>& successors, uint32_t nodes) {
    Events events;
    life_.LeaveEpoch("", events);
    const std::vector<PrefixCache::Saved> blocks = cache_.Save();
    Make(nodes);
    cache_.Restore(blocks, successors);
    kept_.Restore(successors);
    EXPECT_TRUE(Audit().ok()) << Audit();
  }
  // It joins with what the cache has, then with its open block; the tokens that are there.
  uint32_t Join(Sequence& sequence, uint32_t node) {
    const plan::SequenceId id = sequence.request.id;
    life_.Begin(sequence, 0, node);
    kv_.Open(id);
    kv_.BeginSpan(id, node);
    cache_.Join(sequence, node);
    kept_.JoinSpan(sequence);
    const uint32_t there = kv_.TokensOf(id);
    EXPECT_TRUE(kv_.Append(id, sequence.join_tokens - there).ok());
    life_.Settle(sequence);
    EXPECT_EQ(kept_.NextMissing(sequence, sequence.cached_tokens), there);
    EXPECT_TRUE(Audit().ok()) << Audit();
    return there;
  }
};

TEST_F(KeptOpenBlocksTest, WhatIsBehindTheLastWholeBlockStaysWithItsSequence) {
  Sequence& sequence = Decoding(1, 3 * kBlock + 5);
  BeginEpoch({std::nullopt, 0}, 1);
  EXPECT_THAT(kept_.PartsOf(sequence), IsEmpty()) << "it lay on the other node";

  Sequence& other = Decoding(2, 2 * kBlock + 3);
  BeginEpoch({0}, 1);
  ASSERT_THAT(Ranges(kept_.PartsOf(other)), ElementsAre(Pair(2 * kBlock, 3)));
  EXPECT_TRUE(kept_.HasOpenBlockBehind(other, 0, 2 * kBlock));
  EXPECT_FALSE(kept_.HasOpenBlockBehind(other, 0, kBlock));
  EXPECT_EQ(Join(other, 0), 2 * kBlock + 3);
  EXPECT_EQ(kept_.SlotsOn(0), 0u);
  EXPECT_EQ(kept_.tokens_found(), 3u);
}

TEST_F(KeptOpenBlocksTest, SequencesOfWholeBlocksHaveNone) {
  Sequence& sequence = Decoding(1, 2 * kBlock);
  BeginEpoch({0, 1}, 2);
  EXPECT_THAT(kept_.PartsOf(sequence), IsEmpty());
  EXPECT_EQ(Join(sequence, 0), 2 * kBlock);
}

TEST_F(KeptOpenBlocksTest, OneShorterThanABlockIsAnOpenBlock) {
  Sequence& sequence = Decoding(1, 7, 1);
  BeginEpoch({0, 1}, 2);
  EXPECT_TRUE(kept_.HasOpenBlockBehind(sequence, 1, 0));
  EXPECT_FALSE(kept_.HasOpenBlockBehind(sequence, 0, 0)) << "there it is not";
  EXPECT_EQ(Join(sequence, 1), 7u);
}

// Two answers to one prompt share the slots of its last, unfinished block.
TEST_F(KeptOpenBlocksTest, ForksHaveOpenBlocksOfTheirOwn) {
  Sequence& parent = Decoding(1, kBlock + 4);
  Wait(2, kBlock + 4);
  Sequence& fork = *life_.Find(2);
  life_.Begin(fork, 0, 0);
  kv_.Fork(1, 2, kBlock + 4);
  cache_.JoinFork(fork, parent);
  life_.Settle(fork);
  fork.chunked_tokens = kBlock + 4;
  fork.planned_tokens = kBlock + 5;
  fork.committed.push_back(8);
  life_.Decode(fork);
  BeginEpoch({0, 1}, 2);
  EXPECT_EQ(kept_.SlotsOn(0), 8u);
  EXPECT_EQ(kv_.directory().SlotsFree(0), 200u - kBlock - 4);
  EXPECT_EQ(Join(fork, 0), kBlock + 4);
  EXPECT_EQ(Join(parent, 0), kBlock + 4);
  EXPECT_EQ(kv_.directory().SlotsFree(0), 200u - kBlock - 6) << "one token each is its own";
}

TEST_F(KeptOpenBlocksTest, OfAPromptBlocksAreWhatIsStored) {
  Sequence& sequence = Run(1, 5 * kBlock);
  kept_.Stored(sequence, 0, kBlock);
  kept_.Stored(sequence, kBlock, kBlock + 9);
  BeginEpoch({0, 1}, 2);
  EXPECT_EQ(Join(sequence, 0), 2 * kBlock + 9);
  // Nothing more of it is stored when the epoch ends again: whole blocks are the cache's,
  // the open one is gone.
  BeginEpoch({0, 1}, 2);
  EXPECT_EQ(Join(sequence, 0), 2 * kBlock);
}

TEST_F(KeptOpenBlocksTest, GivesWayToWhoNeedsSlots) {
  Sequence& sequence = Decoding(1, kBlock + 5);
  BeginEpoch({0, 1}, 2);
  kept_.MakeRoom(0, 200 - kBlock, &sequence);
  EXPECT_EQ(kept_.SlotsOn(0), 5u) << "its own";
  places_.MakeRoom(0, 200 - kBlock);
  EXPECT_EQ(kv_.directory().SlotsFree(0) + kept_.SlotsOn(0), 200u) << "the cache's blocks first";
  places_.MakeRoom(0, 200);
  EXPECT_EQ(kept_.SlotsOn(0), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(KeptOpenBlocksTest, NoneWhereTheLastBlockHasAnotherForm) {
  Sequence& sequence = Decoding(1, kBlock + 5);
  kept_.ResetOpenBlocks({0, 0});
  Events events;
  life_.LeaveEpoch("", events);
  EXPECT_THAT(kept_.PartsOf(sequence), IsEmpty());
}

}  // namespace
}  // namespace lamina::core
