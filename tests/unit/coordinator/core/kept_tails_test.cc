// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/kept_tails.h"

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

constexpr uint32_t kBlock = 16;
constexpr uint32_t kAhead = 2;

class KeptTailsTest : public PartsTest {
 protected:
  KeptTailsTest() {
    MakeNodes({200, 200}, 1);
    tails_.Reset({kBlock, kBlock}, kAhead);
  }

  // One that decodes, of whose tokens so many are stored.
  Sequence& Decoding(plan::SequenceId id, uint32_t stored, uint32_t node = 0) {
    Sequence& sequence = Run(id, stored, 0, node);
    sequence.chunked_tokens = stored;
    sequence.planned_tokens = stored + 1;
    sequence.committed.push_back(7);
    life_.Decode(sequence);
    return sequence;
  }
  // Node i of before is node successors[i] now.
  void BeginEpoch(const std::vector<std::optional<uint32_t>>& successors = {0, 1}) {
    Events events;
    life_.LeaveEpoch("", events);
    MakeNodes({200, 200}, 1);
    tails_.Reset({kBlock, kBlock}, kAhead);
    tails_.Restore(successors);
    EXPECT_TRUE(AuditTails().ok()) << AuditTails();
  }
  absl::Status AuditTails() {
    return tails_.Audit([this](plan::SequenceId id) {
      const Sequence* const sequence = life_.Find(id);
      return sequence != nullptr && sequence->state == SequenceState::kWaiting;
    });
  }
};

TEST_F(KeptTailsTest, AnOpenBlockIsKeptBehindTheWholeOnes) {
  const Sequence& sequence = Decoding(1, 2 * kBlock + 5);
  BeginEpoch();
  EXPECT_EQ(tails_.TokensBehind(sequence, 0, 2 * kBlock), 5u);
  EXPECT_EQ(tails_.TokensBehind(sequence, 0, kBlock), 0u) << "the block between is missing";
  EXPECT_EQ(tails_.TokensBehind(sequence, 1, 2 * kBlock), 0u);
}

// With one token more the steps that were under way fill it, and begin the next one in its tail.
TEST_F(KeptTailsTest, ABlockThatStepsMayHaveFilledIsNotKept) {
  const Sequence& last_kept = Decoding(1, kBlock - kAhead);
  const Sequence& filled = Decoding(2, kBlock - kAhead + 1);
  const Sequence& whole = Decoding(3, kBlock);
  BeginEpoch();
  EXPECT_EQ(tails_.TokensBehind(last_kept, 0, 0), kBlock - kAhead);
  EXPECT_EQ(tails_.TokensBehind(filled, 0, 0), 0u);
  EXPECT_EQ(tails_.TokensBehind(whole, 0, kBlock), 0u);
}

// All of them had tails there, with or without a block that counts.
TEST_F(KeptTailsTest, WhoRanTakesNobodysTail) {
  Decoding(1, kBlock);
  const Sequence& kept = Decoding(2, kBlock + 3);
  BeginEpoch();
  Start(1);
  EXPECT_EQ(tails_.TokensBehind(kept, 0, kBlock), 3u);
  Start(2);
  EXPECT_EQ(tails_.TokensBehind(kept, 0, kBlock), 0u) << "it has joined";
  EXPECT_TRUE(AuditTails().ok()) << AuditTails();
}

TEST_F(KeptTailsTest, ANewcomerMayTakeAnyOfItsNode) {
  const Sequence& there = Decoding(1, 5, 0);
  const Sequence& elsewhere = Decoding(2, 6, 1);
  BeginEpoch();
  Run(3, 10, 0, 0);
  EXPECT_EQ(tails_.TokensBehind(there, 0, 0), 0u);
  EXPECT_EQ(tails_.TokensBehind(elsewhere, 1, 0), 6u);
  Start(2, 0, 0);
  EXPECT_EQ(tails_.TokensBehind(elsewhere, 1, 0), 0u) << "it runs on another node";
}

// Nodes may not have heard of it.
TEST_F(KeptTailsTest, WhoHasNotDecodedCountsAsANewcomer) {
  const Sequence& kept = Decoding(1, 5);
  Run(2, 40);
  BeginEpoch();
  Start(2);
  EXPECT_EQ(tails_.TokensBehind(kept, 0, 0), 0u);
}

// Nodes may apply joins in another order than that in which they were planned.
TEST_F(KeptTailsTest, WhoHasNoneWaitsForTheTokenOfWhoGoesOnFromIts) {
  const Sequence& first = Decoding(1, 5);
  Decoding(2, kBlock);
  EXPECT_TRUE(tails_.may_take_any());
  BeginEpoch();
  EXPECT_TRUE(tails_.Has(1));
  EXPECT_TRUE(tails_.Has(2)) << "it is as good as empty";
  EXPECT_FALSE(tails_.Has(3));
  Start(2);
  EXPECT_TRUE(tails_.may_take_any()) << "nothing in its tail is of use";
  Start(1, 0, 0, /*found=*/5);
  EXPECT_FALSE(tails_.may_take_any());
  tails_.Settled(first);
  EXPECT_TRUE(tails_.may_take_any());
}

TEST_F(KeptTailsTest, ATailOnAnotherNodeIsNone) {
  Decoding(1, 5, 0);
  const Sequence& elsewhere = Decoding(2, 6, 1);
  BeginEpoch();
  EXPECT_TRUE(tails_.MayJoin(elsewhere, 0));
  Start(1, 0, 0, /*found=*/5);
  EXPECT_FALSE(tails_.MayJoin(elsewhere, 0));
  EXPECT_TRUE(tails_.MayJoin(elsewhere, 1));
}

TEST_F(KeptTailsTest, WhoLeavesReliesOnNothing) {
  Decoding(1, 5);
  BeginEpoch();
  Start(1, 0, 0, /*found=*/5);
  ASSERT_FALSE(tails_.may_take_any());
  life_.Preempt(*life_.Find(1));
  EXPECT_TRUE(tails_.may_take_any());
  EXPECT_TRUE(AuditTails().ok()) << AuditTails();
}

// Its tail is as it was, whether the node has heard that it joined or not.
TEST_F(KeptTailsTest, WhoJoinedAndHasNoTokenKeepsItsTail) {
  Sequence& sequence = Decoding(1, kBlock + 5);
  BeginEpoch();
  Start(1, 0, 0, /*found=*/kBlock + 5);
  sequence.stored_tokens = kBlock + 5;
  BeginEpoch();
  EXPECT_EQ(tails_.TokensBehind(sequence, 0, kBlock), 5u);
}

// The block that is missing is computed in its tail, and the one behind it may have begun there.
TEST_F(KeptTailsTest, WhoJoinsBehindFewerBlocksKeepsNothingInItsTail) {
  Sequence& sequence = Decoding(1, 3 * kBlock + 5);
  BeginEpoch();
  Start(1, 0, 0, /*found=*/kBlock);
  EXPECT_TRUE(tails_.may_take_any()) << "it relies on nothing there";
  sequence.stored_tokens = kBlock + 5;
  BeginEpoch();
  EXPECT_EQ(tails_.TokensBehind(sequence, 0, kBlock), 0u);
}

TEST_F(KeptTailsTest, TailsGoWithTheirNodesAndSequences) {
  const Sequence& first = Decoding(1, 5, 0);
  const Sequence& second = Decoding(2, 6, 1);
  BeginEpoch({std::nullopt, 0});
  EXPECT_EQ(tails_.TokensBehind(first, 0, 0), 0u);
  EXPECT_EQ(tails_.TokensBehind(second, 0, 0), 6u);
  BeginEpoch({1, 0});
  EXPECT_EQ(tails_.TokensBehind(second, 1, 0), 6u) << "it has waited for an epoch";
  tails_.Forget(1);
  EXPECT_EQ(tails_.TokensBehind(second, 1, 0), 0u);
}

TEST_F(KeptTailsTest, WhoEndsIsForgotten) {
  Decoding(1, 5);
  BeginEpoch();
  life_.End(*life_.Find(1));
  EXPECT_TRUE(AuditTails().ok()) << AuditTails();
}

}  // namespace
}  // namespace lamina::core
