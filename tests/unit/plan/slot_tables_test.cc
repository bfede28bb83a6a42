// SPDX-License-Identifier: Apache-2.0
#include "plan/slot_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace lamina::plan {
namespace {

using ::testing::HasSubstr;

// "first+tokens, ...".
std::string Words(const std::vector<Extent>& extents) {
  std::string words;
  for (const Extent& extent : extents) {
    words += (words.empty() ? "" : ", ") + std::to_string(extent.first_slot) + "+" +
             std::to_string(extent.tokens);
  }
  return words;
}

StepPlan Joining(SequenceId id, uint32_t memory_node, const std::vector<Extent>& slots) {
  StepPlan plan{.joins = {{.id = id, .memory_node = memory_node}}};
  for (const Extent& extent : slots) {
    plan.allocations.push_back({.sequence = id, .extent = extent, .memory_node = memory_node});
  }
  return plan;
}

TEST(SlotTablesTest, SlotsAreThoseThatWereAllocatedInOrder) {
  SlotTables tables({.slots = 100});
  ASSERT_TRUE(tables.Apply(Joining(1, 0, {{10, 5}, {15, 3}, {40, 2}})).ok());
  ASSERT_TRUE(tables.Apply({.allocations = {{.sequence = 1, .extent = {42, 1}}}}).ok());

  const SlotTables::Sequence* sequence = tables.Find(1);
  ASSERT_NE(sequence, nullptr);
  EXPECT_EQ(sequence->tokens, 11u);
  EXPECT_EQ(Words(sequence->extents), "10+8, 40+3");
  EXPECT_EQ(Words(*tables.SlotsOf(*sequence, 0, 11)), "10+8, 40+3");
  EXPECT_EQ(Words(*tables.SlotsOf(*sequence, 6, 4)), "16+2, 40+2");
  EXPECT_EQ(Words(*tables.SlotsOf(*sequence, 10, 1)), "42+1");
  EXPECT_THAT(tables.SlotsOf(*sequence, 10, 2).status().ToString(),
              HasSubstr("tokens [10, +2) of a sequence with slots for 11"));
}

TEST(SlotTablesTest, CopiesOfBlocksNameTheirSlotsAndComeBackInParts) {
  SlotTables tables({.node = 1, .slots = 100});
  StepPlan plan = Joining(2, 1, {{50, 9}, {70, 20}});
  plan.spills_out = {
      {.spill = 4, .tokens = 6, .memory_node = 1, .slots = {{10, 4}, {30, 2}}},
      {.spill = 5, .tokens = 6, .memory_node = 0, .slots = {{10, 6}}}};  // Another node's.
  plan.spills_in = {{.spill = 3, .sequence = 2, .tokens = 8, .first = 5, .skip = 2}};
  ASSERT_TRUE(tables.Apply(plan).ok());

  const std::vector<SlotMove> moves = tables.TakeMoves();
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(Words(moves[0].slots), "10+4, 30+2");
  EXPECT_TRUE(moves[0].of_blocks);
  EXPECT_EQ(Words(moves[1].slots), "55+4, 70+4");
  EXPECT_EQ(moves[1].skip, 2u);

  EXPECT_EQ(
      tables.Apply({.spills_out = {{.spill = 6, .memory_node = 1, .slots = {{99, 2}}}}}).code(),
      absl::StatusCode::kInternal)
      << "the arena ends before";
  SlotTables all({.node = 1, .slots = 100, .holds_all = true});
  ASSERT_TRUE(all.Apply({.spills_out = {plan.spills_out[1]}}).ok());
  EXPECT_EQ(all.TakeMoves().size(), 1u) << "it has a part of each token";
}

TEST(SlotTablesTest, SpillsNameTheSlotsOfTheirTokens) {
  SlotTables tables({.node = 1, .slots = 100});
  ASSERT_TRUE(tables.Apply(Joining(1, 1, {{10, 5}, {40, 2}})).ok());
  EXPECT_TRUE(tables.TakeMoves().empty());

  StepPlan plan = Joining(2, 1, {{50, 9}});
  plan.spill_drops = {{.spill = 3}};
  plan.spills_out = {{.spill = 4, .sequence = 1, .tokens = 6},
                     {.spill = 5, .sequence = 77, .tokens = 6}};  // It is another node's.
  plan.leaves = {{1}};
  plan.spills_in = {{.spill = 2, .sequence = 2, .tokens = 8}};
  ASSERT_TRUE(tables.Apply(plan).ok());

  const std::vector<SlotMove> moves = tables.TakeMoves();
  ASSERT_EQ(moves.size(), 3u);
  EXPECT_EQ(moves[0].kind, SlotMove::Kind::kDrop);
  EXPECT_EQ(moves[0].spill, 3u);
  EXPECT_EQ(moves[1].kind, SlotMove::Kind::kOut);
  EXPECT_EQ(Words(moves[1].slots), "10+5, 40+1");
  EXPECT_EQ(moves[2].kind, SlotMove::Kind::kIn);
  EXPECT_EQ(Words(moves[2].slots), "50+8");
  EXPECT_TRUE(tables.TakeMoves().empty()) << "they are taken once";

  EXPECT_EQ(tables.Apply({.spills_out = {{.spill = 6, .sequence = 2, .tokens = 10}}}).code(),
            absl::StatusCode::kInternal)
      << "more than has slots";
}

// Spans of 4 tokens, of which the second is on the other node.
TEST(SlotTablesTest, SpillsOfSpansNameTheSlotsThatAreHere) {
  const auto join = [](SequenceId id, uint32_t node, uint32_t others) {
    StepPlan plan = Joining(id, node, {{10, 4}});
    plan.allocations.push_back({.sequence = id, .extent = {90, 4}, .memory_node = others});
    plan.allocations.push_back({.sequence = id, .extent = {20, 3}, .memory_node = node});
    return plan;
  };
  SlotTables tables({.node = 1, .slots = 100, .span_tokens = 4, .holds_all = true});
  ASSERT_TRUE(tables.Apply(join(1, 1, 0)).ok());
  ASSERT_TRUE(tables.Apply(join(2, 0, 0)).ok());

  StepPlan plan = join(3, 1, 0);
  plan.spills_out = {{.spill = 4, .sequence = 1, .tokens = 10},
                     {.spill = 5, .sequence = 2, .tokens = 10}};  // It has no span here.
  plan.leaves = {{1}, {2}};
  plan.spills_in = {{.spill = 6, .sequence = 3, .tokens = 9}};
  StepPlan early = plan;
  const absl::StatusOr<std::vector<SlotMove>> reads = tables.TakeReads(early);
  ASSERT_TRUE(reads.ok()) << reads.status();
  EXPECT_TRUE(reads->empty()) << "spans are read with their step";
  ASSERT_TRUE(tables.Apply(early).ok());

  const std::vector<SlotMove> moves = tables.TakeMoves();
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].kind, SlotMove::Kind::kOut);
  EXPECT_EQ(moves[0].spill, 4u);
  EXPECT_EQ(Words(moves[0].slots), "10+4, 20+2");
  EXPECT_EQ(moves[1].kind, SlotMove::Kind::kIn);
  EXPECT_EQ(moves[1].spill, 6u);
  EXPECT_EQ(Words(moves[1].slots), "10+4, 20+1");
}

TEST(SlotTablesTest, ReadsOfAPlanMayBeTakenBeforeItIsApplied) {
  SlotTables tables({.node = 1, .slots = 100});
  StepPlan plan = Joining(2, 1, {{50, 9}, {70, 20}});
  const StepPlan others = Joining(3, 0, {{10, 5}});
  plan.joins.push_back(others.joins[0]);
  plan.allocations.push_back(others.allocations[0]);
  plan.spills_in = {{.spill = 3, .sequence = 2, .tokens = 8, .first = 5, .skip = 2},
                    {.spill = 4, .sequence = 3, .tokens = 4}};

  const absl::StatusOr<std::vector<SlotMove>> reads = tables.TakeReads(plan);
  ASSERT_TRUE(reads.ok()) << reads.status();
  ASSERT_EQ(reads->size(), 1u) << "the other one is of another node";
  EXPECT_EQ((*reads)[0].kind, SlotMove::Kind::kIn);
  EXPECT_EQ((*reads)[0].spill, 3u);
  EXPECT_EQ((*reads)[0].skip, 2u);
  EXPECT_EQ(Words((*reads)[0].slots), "55+4, 70+4");
  EXPECT_EQ(tables.Find(2), nullptr);

  ASSERT_TRUE(tables.Apply(plan).ok());
  EXPECT_NE(tables.Find(2), nullptr);
  EXPECT_TRUE(tables.TakeMoves().empty()) << "it is read twice";

  StepPlan wrong = Joining(5, 1, {{30, 4}});
  wrong.spills_in = {{.spill = 6, .sequence = 5, .tokens = 5}};
  EXPECT_EQ(tables.TakeReads(wrong).status().code(), absl::StatusCode::kInternal);
}

// Slots of INT8 have closed blocks of 64 tokens, and tails the tokens behind them.
TEST(SlotTablesTest, OpenBlocksOfSpillsLieInTails) {
  for (const uint32_t open : {0u, 1u, 63u}) {
    SlotTables tables({.node = 1, .slots = 1000, .tails = 2});
    ASSERT_TRUE(tables.Apply(Joining(7, 1, {{900, 1}})).ok());
    ASSERT_TRUE(tables.Apply(Joining(1, 1, {{10, 128 + open}})).ok());
    const uint32_t tail = tables.Find(1)->tail;
    ASSERT_TRUE(tables
                    .Apply({.spills_out = {{.spill = 4, .sequence = 1, .tokens = 128 + open}},
                            .leaves = {{1}}})
                    .ok());
    const std::vector<SlotMove> out = tables.TakeMoves();
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(Words(out[0].slots), "10+128");
    EXPECT_EQ(out[0].tail, open == 0 ? Extent{} : (Extent{tail * 64, open}));

    // One of both tails is another sequence's, and the other one moves.
    StepPlan back = Joining(1, 1, {{300, 129 + open}});
    back.spills_in = {{.spill = 4, .sequence = 1, .tokens = 128 + open}};
    StepPlan early = back;
    ASSERT_EQ(tables.TakeReads(early)->size(), open == 0 ? 1u : 0u);
    EXPECT_EQ(early.spills_in.size(), open == 0 ? 0u : 1u) << "it waits for its step";
    EXPECT_EQ(tables.Apply(early).code(),
              open == 0 ? absl::StatusCode::kOk : absl::StatusCode::kInternal);
  }
}

TEST(SlotTablesTest, TailsOfReadsAreTheirsBeforeThePlanIsApplied) {
  SlotTables tables({.node = 1, .slots = 1000, .tails = 2});
  ASSERT_TRUE(tables.Apply(Joining(7, 1, {{900, 1}})).ok());
  StepPlan back = Joining(1, 1, {{300, 66}});
  back.spills_in = {{.spill = 4, .sequence = 1, .tokens = 65}};

  const absl::StatusOr<std::vector<SlotMove>> reads = tables.TakeReads(back);
  ASSERT_TRUE(reads.ok()) << reads.status();
  ASSERT_EQ(reads->size(), 1u);
  EXPECT_EQ(Words((*reads)[0].slots), "300+64");
  EXPECT_EQ((*reads)[0].tail.tokens, 1u);
  EXPECT_EQ(tables.Apply(Joining(8, 1, {{800, 1}})).code(), absl::StatusCode::kInternal)
      << "no tail is left";
  ASSERT_TRUE(tables.Apply(back).ok());
  EXPECT_EQ((*reads)[0].tail.first_slot, tables.Find(1)->tail * 64);

  // It leaves while it is read: nobody else gets its tail before that is over.
  ASSERT_TRUE(tables.Apply({.leaves = {{1}}}).ok());
  EXPECT_EQ(tables.Apply(Joining(8, 1, {{800, 1}})).code(), absl::StatusCode::kInternal);
  tables.EndMove(4);
  EXPECT_TRUE(tables.Apply(Joining(8, 1, {{800, 1}})).ok());
}

// Its leave is in a plan that has not been applied yet.
TEST(SlotTablesTest, WhoIsStillHereIsReadBackWithItsStep) {
  SlotTables tables({.node = 1, .slots = 1000, .tails = 3});
  ASSERT_TRUE(tables.Apply(Joining(1, 1, {{10, 66}})).ok());
  StepPlan back = Joining(1, 1, {{300, 66}});
  back.spills_in = {{.spill = 4, .sequence = 1, .tokens = 65}};
  ASSERT_TRUE(tables.TakeReads(back)->empty());
  ASSERT_TRUE(tables.Apply(back).ok());
  const std::vector<SlotMove> moves = tables.TakeMoves();
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(Words(moves[0].slots), "300+64");
  EXPECT_EQ(moves[0].tail, (Extent{tables.Find(1)->tail * 64, 1}));
}

// It was read ahead of its step and left while it was, and comes back: neither its first join nor
// its leave has been applied yet.
TEST(SlotTablesTest, WhoIsStillToJoinAndLeaveIsReadBackWithItsStep) {
  SlotTables tables({.node = 1, .slots = 1000, .tails = 3});
  StepPlan first = Joining(1, 1, {{10, 66}});
  first.spills_in = {{.spill = 4, .sequence = 1, .tokens = 65}};
  ASSERT_EQ(tables.TakeReads(first)->size(), 1u);
  tables.EndMove(4);
  StepPlan again = Joining(1, 1, {{300, 66}});
  again.spills_in = {{.spill = 4, .sequence = 1, .tokens = 65}};

  ASSERT_TRUE(tables.TakeReads(again)->empty());
  ASSERT_TRUE(tables.Apply(first).ok());
  ASSERT_TRUE(tables.Apply({.leaves = {{1}}}).ok());
  ASSERT_TRUE(tables.Apply(again).ok());

  const std::vector<SlotMove> moves = tables.TakeMoves();
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(Words(moves[0].slots), "300+64");
  EXPECT_EQ(moves[0].tail, (Extent{tables.Find(1)->tail * 64, 1}));
}

TEST(SlotTablesTest, SequencesOfOtherNodesAreNotKept) {
  SlotTables tables({.node = 1, .slots = 100});
  ASSERT_TRUE(tables.Apply(Joining(1, 0, {{400, 5}})).ok());  // These slots are not here.
  ASSERT_TRUE(tables.Apply(Joining(2, 1, {{0, 5}})).ok());
  EXPECT_EQ(tables.Find(1), nullptr);
  EXPECT_NE(tables.Find(2), nullptr);

  SlotTables all({.node = 1, .slots = 1000, .holds_all = true});
  ASSERT_TRUE(all.Apply(Joining(1, 0, {{400, 5}})).ok());
  EXPECT_NE(all.Find(1), nullptr);
}

TEST(SlotTablesTest, ASequenceThatLeavesMayJoinAgainInTheSamePlan) {
  SlotTables tables({.slots = 100});
  ASSERT_TRUE(tables.Apply(Joining(1, 0, {{10, 5}})).ok());
  StepPlan again = Joining(1, 0, {{60, 2}});
  again.leaves = {{1}};
  ASSERT_TRUE(tables.Apply(again).ok());
  EXPECT_EQ(Words(tables.Find(1)->extents), "60+2");
  ASSERT_TRUE(tables.Apply({.leaves = {{1}}}).ok());
  EXPECT_EQ(tables.Find(1), nullptr);
}

TEST(SlotTablesTest, EachSequenceHasATailOfItsOwnUntilItLeaves) {
  SlotTables tables({.slots = 100, .tails = 2});
  ASSERT_TRUE(tables.Apply(Joining(1, 0, {{0, 5}})).ok());
  ASSERT_TRUE(tables.Apply(Joining(2, 1, {{5, 5}})).ok());  // It is another node's.
  ASSERT_TRUE(tables.Apply(Joining(3, 0, {{5, 5}})).ok());
  EXPECT_NE(tables.Find(1)->tail, tables.Find(3)->tail);
  EXPECT_LT(std::max(tables.Find(1)->tail, tables.Find(3)->tail), 2u);
  EXPECT_THAT(tables.Apply(Joining(4, 0, {{10, 5}})).ToString(),
              HasSubstr("plan joins sequence 4, and all 2 tails of open blocks are taken"));
  const uint32_t tail = tables.Find(1)->tail;
  StepPlan next = Joining(5, 0, {{10, 5}});
  next.leaves.push_back({.id = 1});
  next.leaves.push_back({.id = 2});
  ASSERT_TRUE(tables.Apply(next).ok());
  EXPECT_EQ(tables.Find(5)->tail, tail);
  ASSERT_TRUE(tables.Apply(Joining(5, 0, {{10, 5}})).ok());  // It is the one that left, anew.
}

StepPlan JoiningBy(AttentionPath path, SequenceId id, const Extent& extent) {
  StepPlan plan = Joining(id, 0, {extent});
  plan.joins[0].path = path;
  return plan;
}

TEST(SlotTablesTest, SequencesOfPathRemoteInt8AloneHaveTailsAndSlotsOfThatForm) {
  SlotTables tables({.slots = 10, .tails = 2, .int8_slots = 50});
  EXPECT_TRUE(tables.Apply(JoiningBy(AttentionPath::kRemoteInt8, 1, {40, 10})).ok());
  EXPECT_TRUE(tables.Apply(JoiningBy(AttentionPath::kRemote, 2, {0, 10})).ok());
  EXPECT_TRUE(tables.Apply(JoiningBy(AttentionPath::kRemote, 3, {0, 1})).ok());
  EXPECT_TRUE(tables.Apply(JoiningBy(AttentionPath::kRemoteInt8, 4, {0, 10})).ok());
  EXPECT_NE(tables.Find(1)->tail, tables.Find(4)->tail);
  EXPECT_THAT(tables.Apply(JoiningBy(AttentionPath::kRemoteInt8, 5, {10, 1})).ToString(),
              HasSubstr("all 2 tails of open blocks are taken"));
  StepPlan leaving;
  leaving.leaves = {{.id = 1}, {.id = 2}};
  EXPECT_TRUE(tables.Apply(leaving).ok());
  EXPECT_TRUE(tables.Apply(JoiningBy(AttentionPath::kRemoteInt8, 6, {40, 10})).ok());
  EXPECT_THAT(tables.Apply(JoiningBy(AttentionPath::kRemoteInt8, 7, {10, 1})).ToString(),
              HasSubstr("all 2 tails"));
  EXPECT_THAT(tables.Apply(JoiningBy(AttentionPath::kRemote, 8, {5, 6})).ToString(),
              HasSubstr("slots [5, +6) of an arena of 10"));
  leaving.leaves = {{.id = 6}};
  EXPECT_TRUE(tables.Apply(leaving).ok());
  EXPECT_THAT(tables.Apply(JoiningBy(AttentionPath::kRemoteInt8, 9, {45, 6})).ToString(),
              HasSubstr("slots [45, +6) of an arena of 50"));
}

TEST(SlotTablesTest, SequencesOfPathHybridHaveSlotsOfTheirOwnNextToOthers) {
  SlotTables tables({.slots = 10, .hybrid_slots = 50});
  EXPECT_TRUE(tables.Apply(JoiningBy(AttentionPath::kHybrid, 1, {40, 10})).ok());
  EXPECT_TRUE(tables.Apply(JoiningBy(AttentionPath::kFetch, 2, {0, 10})).ok());
  EXPECT_THAT(tables.Apply(JoiningBy(AttentionPath::kFetch, 3, {5, 6})).ToString(),
              HasSubstr("slots [5, +6) of an arena of 10"));
  EXPECT_THAT(tables.Apply(JoiningBy(AttentionPath::kHybrid, 4, {45, 6})).ToString(),
              HasSubstr("slots [45, +6) of an arena of 50"));
  SlotTables alone({.slots = 50});
  EXPECT_TRUE(alone.Apply(JoiningBy(AttentionPath::kHybrid, 1, {40, 10})).ok());
}

TEST(SlotTablesTest, TokensWhoseSlotsAreReleasedKeepTheirNumbers) {
  SlotTables tables({.slots = 100});
  ASSERT_TRUE(tables.Apply(Joining(1, 0, {{10, 5}, {40, 6}})).ok());
  ASSERT_TRUE(tables.Apply({.releases = {{.sequence = 1, .tokens = 2}}}).ok());
  const SlotTables::Sequence* sequence = tables.Find(1);
  EXPECT_EQ(Words(sequence->extents), "0+2, 12+3, 40+6");
  ASSERT_TRUE(tables
                  .Apply({.releases = {{.sequence = 1, .tokens = 7}, {.sequence = 77, .tokens = 1}},
                          .allocations = {{.sequence = 1, .extent = {10, 1}}}})
                  .ok());

  EXPECT_EQ(Words(sequence->extents), "0+7, 42+4, 10+1");
  EXPECT_EQ(sequence->tokens, 12u);
  EXPECT_EQ(Words(*tables.SlotsOf(*sequence, 7, 5)), "42+4, 10+1");
  EXPECT_THAT(tables.SlotsOf(*sequence, 6, 2).status().ToString(),
              HasSubstr("token 6 of a sequence whose first 7 have no slots any more"));
  for (const uint32_t bad : {7u, 3u, 13u}) {
    EXPECT_EQ(tables.Apply({.releases = {{.sequence = 1, .tokens = bad}}}).code(),
              absl::StatusCode::kInternal);
  }
}

TEST(SlotTablesTest, ASpanWhoseSlotsAreAllReleasedIsStillOne) {
  SlotTables tables({.node = 1, .slots = 100, .span_tokens = 4, .holds_all = true});
  ASSERT_TRUE(tables.Apply(Joining(1, 1, {{10, 4}, {20, 4}, {30, 2}})).ok());
  ASSERT_TRUE(tables.Apply({.releases = {{.sequence = 1, .tokens = 6}}}).ok());

  const SlotTables::Sequence* sequence = tables.Find(1);
  ASSERT_EQ(sequence->spans.size(), 3u);
  EXPECT_EQ(Words(sequence->spans[0].extents), "0+4");
  EXPECT_EQ(Words(sequence->spans[1].extents), "0+2, 22+2");
  EXPECT_EQ(Words(*tables.SlotsOf(*sequence, 6, 4)), "22+2, 30+2");
}

TEST(SlotTablesTest, SlotsThatTheArenaDoesNotHaveAreRefused) {
  for (const Extent& bad : {Extent{100, 1}, Extent{98, 3}, Extent{5, 0}, Extent{99, UINT32_MAX}}) {
    SlotTables tables({.slots = 100});
    EXPECT_THAT(tables.Apply(Joining(1, 0, {bad})).ToString(), HasSubstr("of an arena of 100"));
  }
}

// Spans of 8 tokens, those of this node kept.
TEST(SlotTablesTest, SpansOfThisNodeHaveTheirSlots) {
  SlotTables tables({.node = 1, .slots = 100, .span_tokens = 8, .holds_all = true});
  StepPlan plan{.joins = {{.id = 1, .memory_node = 0}}};
  plan.allocations = {
      {1, {500, 8}, 0}, {1, {10, 5}, 1}, {1, {30, 3}, 1}, {1, {0, 8}, 2}, {1, {50, 2}, 1}};
  ASSERT_TRUE(tables.Apply(plan).ok());
  const SlotTables::Sequence* sequence = tables.Find(1);
  EXPECT_EQ(sequence->tokens, 26u);
  ASSERT_EQ(sequence->spans.size(), 2u);
  EXPECT_EQ(sequence->spans[0].index, 1u);
  EXPECT_EQ(sequence->spans[1].index, 3u);
  EXPECT_EQ(Words(*tables.SlotsOf(*sequence, 0, 26)), "10+5, 30+3, 50+2");
  EXPECT_EQ(Words(*tables.SlotsOf(*sequence, 12, 3)), "14+1, 30+2");
  EXPECT_EQ(Words(*tables.SlotsOf(*sequence, 16, 8)), "");

  EXPECT_THAT(tables.Apply({.allocations = {{1, {60, 7}, 1}}}).ToString(),
              HasSubstr("across the border"));
}

// As a compute node has them that reads those of all.
TEST(SlotTablesTest, SpansOfAllNodesHaveTheirSlotsWhereTheyAreAskedFor) {
  SlotTables tables({.slots = 600, .span_tokens = 8, .holds_all = true, .all_spans = true});
  StepPlan plan{.joins = {{.id = 1, .memory_node = 0}}};
  plan.allocations = {{1, {500, 8}, 0}, {1, {10, 5}, 1}, {1, {30, 3}, 1}, {1, {0, 2}, 2}};
  ASSERT_TRUE(tables.Apply(plan).ok());
  const SlotTables::Sequence* sequence = tables.Find(1);
  ASSERT_EQ(sequence->spans.size(), 3u);
  EXPECT_EQ(Words(sequence->spans[0].extents), "500+8");
  EXPECT_EQ(Words(sequence->spans[1].extents), "10+5, 30+3");
  EXPECT_EQ(Words(sequence->spans[2].extents), "0+2");
  ASSERT_TRUE(tables.Apply({.releases = {{.sequence = 1, .tokens = 9}}}).ok());
  EXPECT_EQ(Words(sequence->spans[0].extents), "0+8");
  EXPECT_EQ(Words(sequence->spans[1].extents), "0+1, 11+4, 30+3");
  EXPECT_THAT(tables.Apply({.allocations = {{1, {600, 1}, 1}}}).ToString(),
              HasSubstr("of an arena of 600"));
}

}  // namespace
}  // namespace lamina::plan
