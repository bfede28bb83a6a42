// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/spills.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

class SpillsTest : public PartsTest {
 protected:
  // So many blocks of 64 tokens on each node, which `nodes` of the cluster write; closed blocks of
  // INT8 are of `tokens`.
  void MakeTiers(uint32_t nodes = 1, uint32_t tokens = 1, uint32_t blocks = 2) {
    MakeNodes({500, 500}, 2, 0, {}, false, {}, {.blocks = blocks, .nodes = nodes}, tokens);
  }
  Sequence& Decoding(plan::SequenceId id, uint32_t prompt, uint32_t node = 0) {
    Sequence& sequence = Run(id, prompt, 0, node);
    sequence.chunked_tokens = prompt;
    sequence.planned_tokens = prompt + 1;
    sequence.committed.push_back(5);
    life_.Decode(sequence);
    return sequence;
  }
  // One that is cut into spans on these nodes.
  Sequence& DecodingOn(plan::SequenceId id, uint32_t prompt, const std::vector<uint32_t>& nodes) {
    Sequence& sequence = Wait(id, prompt);
    StartOn(sequence, nodes);
    sequence.chunked_tokens = prompt;
    sequence.planned_tokens = prompt + 1;
    sequence.committed.push_back(5);
    life_.Decode(sequence);
    return sequence;
  }
  void StartOn(Sequence& sequence, const std::vector<uint32_t>& nodes) {
    const plan::SequenceId id = sequence.request.id;
    life_.Begin(sequence, 0, nodes.back());
    kv_.Open(id);
    for (const uint32_t node : nodes) {
      kv_.BeginSpan(id, node);
      const uint32_t left = sequence.join_tokens - kv_.TokensOf(id);
      EXPECT_TRUE(kv_.Append(id, std::min(kv_.RoomInSpan(id), left)).ok());
    }
    life_.Settle(sequence);
  }
  // The step with its leave is done.
  void Drain() {
    const StepBorder border = borders_.Seal(0);
    borders_.Pass(0, border);
    life_.WaitAgain(border.draining);
  }
  uint32_t Free(uint32_t node = 0) const { return kv_.directory().SlotsFree(node); }
};

TEST_F(SpillsTest, SlotsComeFreeOnceTheyAreWritten) {
  MakeTiers();
  Sequence& sequence = Decoding(1, 100);
  ASSERT_TRUE(spills_.Fits(sequence));

  life_.Spill(sequence);
  EXPECT_EQ(spills_.SlotsLeaving(0), 100u);
  Drain();
  EXPECT_EQ(Free(), 400u) << "the node may be reading them";
  EXPECT_FALSE(spills_.IsStored(sequence));
  ASSERT_TRUE(Audit().ok()) << Audit();

  const Spills::Done done = spills_.Take({.spill = sequence.spill, .ok = true});
  EXPECT_EQ(done.sequence, 1u);
  EXPECT_FALSE(done.was_read);
  EXPECT_TRUE(done.ok);
  EXPECT_EQ(Free(), 500u);
  EXPECT_EQ(spills_.SlotsLeaving(0), 0u);
  EXPECT_TRUE(spills_.IsStored(sequence));
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(SpillsTest, AReportBeforeTheLeaveIsDoneFreesNothing) {
  MakeTiers();
  Sequence& sequence = Decoding(1, 100);
  life_.Spill(sequence);
  spills_.Take({.spill = sequence.spill, .ok = true});
  EXPECT_EQ(Free(), 400u) << "steps with its rows are under way";
  Drain();
  EXPECT_EQ(Free(), 500u);
}

TEST_F(SpillsTest, ThePlanOfTheLeaveCarriesIt) {
  MakeTiers();
  Sequence& sequence = Decoding(1, 100);
  life_.Spill(sequence);
  const StepBorder border = borders_.Seal(0);
  ASSERT_EQ(border.leaves.size(), 1u);
  ASSERT_EQ(border.spills.size(), 1u);
  EXPECT_EQ(border.spills[0],
            (plan::SpillOut{.spill = sequence.spill, .sequence = 1, .tokens = 100}));
}

// A block of the tier has 32 tokens of an open block.
TEST_F(SpillsTest, OpenBlocksOfInt8TakeTheirRoom) {
  struct Case {
    uint32_t tokens;
    uint32_t blocks;
  };
  plan::SequenceId id = 0;
  for (const Case& tested : {Case{1, 1}, Case{32, 1}, Case{33, 2}, Case{63, 2}, Case{64, 1},
                             Case{65, 2}, Case{96, 2}, Case{97, 3}, Case{127, 3}, Case{128, 2}}) {
    for (const uint32_t blocks : {tested.blocks - 1, tested.blocks}) {
      MakeTiers(/*nodes=*/1, /*tokens=*/64, blocks);
      Sequence& sequence = Decoding(++id, tested.tokens);
      EXPECT_EQ(spills_.Fits(sequence), blocks == tested.blocks) << tested.tokens;
      life_.End(sequence);
    }
  }
}

// Its tail is to be written, and then to be read into another one.
TEST_F(SpillsTest, AllIsWrittenAndReadWhereKvIsInt8) {
  for (const uint32_t open : {0u, 1u, 63u}) {
    MakeTiers(/*nodes=*/1, /*tokens=*/64, /*blocks=*/4);
    const uint32_t tails = open > 0 ? 1 : 0;
    Sequence& sequence = Decoding(10 + open, 128 + open);
    EXPECT_EQ(spills_.RatesOf(0).block_tokens, 64u);

    life_.Spill(sequence);
    EXPECT_EQ(spills_.tails_leaving(), tails);
    const StepBorder border = borders_.Seal(0);
    EXPECT_EQ(border.spills.at(0).tokens, 128 + open);
    borders_.Pass(0, border);
    life_.WaitAgain(border.draining);
    EXPECT_EQ(spills_.tails_leaving(), tails) << "the node may be reading it";
    spills_.Take({.spill = sequence.spill, .ok = true});
    EXPECT_EQ(spills_.tails_leaving(), 0u);
    EXPECT_EQ(Free(), 500u);
    ASSERT_TRUE(Audit().ok()) << Audit();

    Start(sequence.request.id);
    sequence.restoring = true;
    EXPECT_EQ(spills_.In(sequence).tokens, 128 + open) << "all but its last token";
    EXPECT_EQ(spills_.tails_leaving(), 0u) << "it is among those of sequences that run";
    life_.Preempt(sequence);
    EXPECT_EQ(spills_.tails_leaving(), tails);
    Drain();
    EXPECT_TRUE(spills_.Take({.spill = sequence.spill, .ok = true}).was_read);
    EXPECT_EQ(spills_.tails_leaving(), 0u);
    ASSERT_TRUE(Audit().ok()) << Audit();
    life_.End(sequence);
  }
}

TEST_F(SpillsTest, NobodyJoinsWithATailThatIsBeingWritten) {
  MakeTiers(/*nodes=*/1, /*tokens=*/64, /*blocks=*/4);
  SchedulerOptions options;
  options.kv = KvForm::kInt8;
  options.int8_tails = 1;
  const auto has_tail = [&] {
    return HasTail(options, places_, plan::AttentionPath::kRemote, /*id=*/2);
  };
  Sequence& sequence = Decoding(1, 65);
  life_.Spill(sequence);
  Drain();
  EXPECT_FALSE(has_tail());
  spills_.Take({.spill = sequence.spill, .ok = true});
  EXPECT_TRUE(has_tail());
}

TEST_F(SpillsTest, AllNodesWithAPartReport) {
  MakeTiers(/*nodes=*/2);
  Sequence& sequence = Decoding(1, 100);
  life_.Spill(sequence);
  EXPECT_EQ(spills_.Take({.spill = sequence.spill, .ok = false}).sequence, 0u);
  const Spills::Done done = spills_.Take({.spill = sequence.spill, .ok = true});
  EXPECT_EQ(done.sequence, 1u);
  EXPECT_FALSE(done.ok) << "a part of it is nowhere";
}

// Spans of 128 tokens: 228 of the sequence are on node 0, and 128 on node 1.
TEST_F(SpillsTest, ASequenceThatIsCutGoesToAllItsNodesAndComesBackToThem) {
  MakeNodes({500, 500, 500}, 2, /*span_tokens=*/128, {}, false, {}, {.blocks = 4});
  const std::vector<uint32_t> nodes = {0, 1, 0};
  Sequence& sequence = DecodingOn(1, 356, nodes);
  ASSERT_TRUE(spills_.Fits(sequence));

  life_.Spill(sequence);
  EXPECT_EQ(spills_.SlotsLeaving(0), 228u);
  EXPECT_EQ(spills_.SlotsLeaving(1), 128u);
  EXPECT_EQ(spills_.SlotsLeaving(2), 0u);
  EXPECT_FALSE(spills_.Fits(DecodingOn(2, 1, {0}))) << "the tier of node 0 is full";
  EXPECT_TRUE(spills_.Fits(DecodingOn(3, 128, {1})));
  EXPECT_FALSE(spills_.Fits(DecodingOn(4, 129, {1, 0}))) << "all of it or nothing";
  Drain();
  ASSERT_TRUE(Audit().ok()) << Audit();
  EXPECT_EQ(spills_.Take({.spill = sequence.spill, .ok = true}).sequence, 0u) << "one is left";
  EXPECT_FALSE(spills_.IsStored(sequence));
  EXPECT_EQ(spills_.SlotsLeaving(1), 128u);
  EXPECT_EQ(spills_.Take({.spill = sequence.spill, .ok = true}).sequence, 1u);
  ASSERT_TRUE(spills_.IsStored(sequence));
  const absl::Span<const uint32_t> stored = spills_.NodesOf(sequence);
  EXPECT_EQ(std::vector<uint32_t>(stored.begin(), stored.end()), nodes);
  EXPECT_EQ(spills_.SlotsLeaving(0) + spills_.SlotsLeaving(1), 0u);
  ASSERT_TRUE(Audit().ok()) << Audit();

  StartOn(sequence, nodes);
  sequence.restoring = true;
  EXPECT_EQ(spills_.In(sequence).tokens, 356u);
  ASSERT_TRUE(Audit().ok()) << Audit();
  EXPECT_EQ(spills_.Take({.spill = sequence.spill, .ok = true}).sequence, 0u);
  EXPECT_TRUE(spills_.Take({.spill = sequence.spill, .ok = true}).was_read);
  EXPECT_TRUE(spills_.IsStored(sequence));
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(SpillsTest, WhatOneNodeCannotWriteIsNowhere) {
  MakeNodes({500, 500}, 2, /*span_tokens=*/128, {}, false, {}, {.blocks = 4});
  Sequence& sequence = DecodingOn(1, 200, {0, 1});
  life_.Spill(sequence);
  Drain();
  spills_.Take({.spill = sequence.spill, .ok = false});
  const Spills::Done done = spills_.Take({.spill = sequence.spill, .ok = true});
  EXPECT_EQ(done.sequence, 1u);
  EXPECT_FALSE(done.ok);
  EXPECT_EQ(spills_.TakeDrops(), std::vector<plan::SpillDrop>{{.spill = sequence.spill}});
  EXPECT_EQ(Free(0), 500u);
  EXPECT_EQ(Free(1), 500u);
}

// It has 72 tokens on node 1, which is the last to report, well or not.
TEST_F(SpillsTest, WhoLeavesWhenOnePartIsBackIsNotBack) {
  for (const bool ok : {true, false}) {
    MakeNodes({500, 500}, 2, /*span_tokens=*/128, {}, false, {}, {.blocks = 4});
    Sequence& sequence = DecodingOn(ok ? 1 : 2, 200, {0, 1});
    life_.Spill(sequence);
    Drain();
    spills_.Take({.spill = sequence.spill, .ok = true});
    spills_.Take({.spill = sequence.spill, .ok = true});
    StartOn(sequence, {0, 1});
    sequence.restoring = true;
    spills_.In(sequence);
    EXPECT_EQ(spills_.Take({.spill = sequence.spill, .ok = true}).sequence, 0u);

    life_.Preempt(sequence);
    EXPECT_EQ(spills_.SlotsLeaving(0), 128u);
    EXPECT_EQ(spills_.SlotsLeaving(1), 72u);
    Drain();
    EXPECT_EQ(Free(0), 372u) << "who reported is not known";
    EXPECT_EQ(Free(1), 428u) << "all but the last token's";
    EXPECT_FALSE(spills_.IsStored(sequence));
    ASSERT_TRUE(Audit().ok()) << Audit();

    const Spills::Done done = spills_.Take({.spill = sequence.spill, .ok = ok});
    EXPECT_EQ(done.sequence, sequence.request.id);
    EXPECT_EQ(done.ok, ok);
    EXPECT_EQ(spills_.SlotsLeaving(0) + spills_.SlotsLeaving(1), 0u);
    EXPECT_EQ(Free(0) + Free(1), 1000u);
    EXPECT_EQ(spills_.stats().stored, ok ? 1u : 0u);
    sequence.spill = ok ? sequence.spill : 0;
    ASSERT_TRUE(Audit().ok()) << Audit();
    life_.End(sequence);
    EXPECT_EQ(spills_.TakeDrops().size(), 1u);
  }
}

TEST_F(SpillsTest, WhatTheTierHasNoRoomForDoesNotFit) {
  MakeTiers();
  Sequence& first = Decoding(1, 65);
  Sequence& second = Decoding(2, 1);
  Sequence& elsewhere = Decoding(3, 128, 1);
  EXPECT_TRUE(spills_.Fits(second));
  EXPECT_TRUE(spills_.Fits(elsewhere));
  life_.Spill(first);
  EXPECT_FALSE(spills_.Fits(second));
  EXPECT_TRUE(spills_.Fits(elsewhere)) << "that is another node";
  Sequence& long_one = Decoding(4, 129, 1);
  EXPECT_FALSE(spills_.Fits(long_one)) << "three blocks";
}

TEST_F(SpillsTest, PromptsAndBeamsDoNotFit) {
  MakeTiers();
  EXPECT_FALSE(spills_.Fits(Run(1, 10))) << "its prompt is not stored";
  Sequence& beam = Decoding(2, 10);
  beam.request.is_beam = true;
  EXPECT_FALSE(spills_.Fits(beam)) << "others share its slots";
}

TEST_F(SpillsTest, WhatEndsWhileItMovesIsDroppedAfterwards) {
  MakeTiers();
  Sequence& sequence = Decoding(1, 100);
  life_.Spill(sequence);
  const uint64_t spill = sequence.spill;
  Drain();
  life_.End(sequence);
  EXPECT_FALSE(spills_.has_drops());
  EXPECT_EQ(Free(), 400u);
  ASSERT_TRUE(spills_.Audit().ok()) << spills_.Audit();

  EXPECT_EQ(spills_.Take({.spill = spill, .ok = true}).sequence, 0u);
  EXPECT_EQ(spills_.TakeDrops(), std::vector<plan::SpillDrop>{{.spill = spill}});
  EXPECT_EQ(Free(), 500u);
  EXPECT_EQ(spills_.stats().stored, 0u);
  EXPECT_TRUE(spills_.Audit().ok()) << spills_.Audit();
}

TEST_F(SpillsTest, WhatEndsInTheTierIsDroppedAtOnce) {
  MakeTiers();
  Sequence& sequence = Decoding(1, 100);
  life_.Spill(sequence);
  const uint64_t spill = sequence.spill;
  Drain();
  spills_.Take({.spill = spill, .ok = true});
  life_.End(sequence);
  EXPECT_EQ(spills_.TakeDrops(), std::vector<plan::SpillDrop>{{.spill = spill}});
  EXPECT_TRUE(spills_.TakeDrops().empty());
  Sequence& next = Decoding(2, 10);
  EXPECT_FALSE(spills_.Fits(next)) << "another lane may spill before this one drops";
  spills_.Dropped({{.spill = spill}});
  EXPECT_TRUE(spills_.Fits(next));
  EXPECT_TRUE(spills_.Audit().ok()) << spills_.Audit();
}

// It may be read into slots that the sequence has given up by then: nobody gets them before.
TEST_F(SpillsTest, SlotsThatAreReadIntoAreKeptUntilTheyHaveBeen) {
  MakeTiers();
  Sequence& sequence = Decoding(1, 100);
  life_.Spill(sequence);
  Drain();
  spills_.Take({.spill = sequence.spill, .ok = true});

  Start(1);
  sequence.restoring = true;
  EXPECT_EQ(spills_.In(sequence),
            (plan::SpillIn{.spill = sequence.spill, .sequence = 1, .tokens = 100}));
  EXPECT_EQ(spills_.SlotsLeaving(0), 0u);
  life_.Preempt(sequence);
  EXPECT_EQ(spills_.SlotsLeaving(0), 100u);
  Drain();
  EXPECT_EQ(Free(), 400u) << "all but the last token's";
  ASSERT_TRUE(Audit().ok()) << Audit();

  const Spills::Done done = spills_.Take({.spill = sequence.spill, .ok = true});
  EXPECT_TRUE(done.was_read);
  EXPECT_EQ(Free(), 500u);
  EXPECT_TRUE(spills_.IsStored(sequence)) << "it may be read again";
}

TEST_F(SpillsTest, ATierThatFailsInARowIsLeftAlone) {
  MakeTiers();
  for (plan::SequenceId id = 1; id <= Spills::kFailuresInARowMax + 1; ++id) {
    Sequence& sequence = Decoding(id, 10);
    const bool fits = id <= Spills::kFailuresInARowMax;
    ASSERT_EQ(spills_.Fits(sequence), fits) << id;
    EXPECT_TRUE(spills_.Fits(Decoding(100 + id, 10, 1))) << "that is another node's";
    if (fits) {
      life_.Spill(sequence);
      spills_.Take({.spill = std::exchange(sequence.spill, 0), .ok = false});
      spills_.Dropped(spills_.TakeDrops());
    }
  }
  EXPECT_EQ(spills_.stats().failures, Spills::kFailuresInARowMax);
}

TEST_F(SpillsTest, ReportsThatNobodyWaitsForAreIgnored) {
  MakeTiers();
  Sequence& sequence = Decoding(1, 100);
  life_.Spill(sequence);
  spills_.Take({.spill = sequence.spill, .ok = true});
  EXPECT_EQ(spills_.Take({.spill = sequence.spill, .ok = false}).sequence, 0u);
  EXPECT_TRUE(spills_.IsStored(sequence));
  EXPECT_EQ(spills_.Take({.spill = 77, .ok = true}).sequence, 0u);
}

}  // namespace
}  // namespace lamina::core
