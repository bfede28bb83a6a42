// SPDX-License-Identifier: Apache-2.0

#include "memory_node/step_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lamina::memory_node {
namespace {

using plan::AttentionPath;
using ::testing::HasSubstr;

// Sequences 1, 2, ... of these paths, each with a row at position 3, or as many prompts' tokens.
absl::Status Collect(const std::vector<AttentionPath>& paths, Lane& lane, uint32_t recomputed = 0,
                     bool chunks = false, uint32_t row_sequences_max = 0) {
  const plan::EpochConfig config{
      .lanes = 1,
      .rows_max = 8,
      .row_sequences_max = row_sequences_max,
      .chunk_tokens_max = 8,
      .sequence_tokens_max = 64,
      .layers = {{.query_heads = 2, .kv_heads = 1, .head_dim = 32}},
      .compute_nodes = {"c0"},
      .attention_paths = {AttentionPath::kRemote, AttentionPath::kFetch, AttentionPath::kSparse,
                          AttentionPath::kRecompute},
      .fetch_bytes = 1 << 20,
      .activation_width = 40,
      .sparse_ratio = 0.5,
      .memory_nodes = {"m0"},
      .slots = {64}};
  plan::StepPlan plan{.step = 5, .recomputed = recomputed};
  for (uint32_t i = 0; i < paths.size(); ++i) {
    plan.joins.push_back({.id = i + 1, .path = paths[i]});
    plan.allocations.push_back(
        {.sequence = i + 1, .extent = {.first_slot = 4 * i, .tokens = 4}, .memory_node = 0});
    if (chunks) {
      plan.chunks.push_back({.sequence = i + 1, .tokens = 4});
    } else {
      plan.rows.push_back({.sequence = i + 1, .position = 3});
    }
  }
  plan::SlotTables tables({.slots = 64});
  EXPECT_TRUE(tables.Apply(plan).ok());
  return CollectRows(config, tables, plan, lane);
}

TEST(StepRowsTest, RowsOfOnePathAttendHereOrAreFetchedByIt) {
  Lane lane;
  ASSERT_TRUE(Collect({AttentionPath::kRemote, AttentionPath::kRemote}, lane).ok());
  EXPECT_EQ(lane.rows.size(), 2u);
  EXPECT_TRUE(lane.fetched.empty());
  for (const AttentionPath path :
       {AttentionPath::kFetch, AttentionPath::kSparse, AttentionPath::kRecompute}) {
    ASSERT_TRUE(Collect({path, path}, lane).ok());
    EXPECT_TRUE(lane.rows.empty());
    EXPECT_EQ(lane.fetched.size(), 2u);
    EXPECT_EQ(lane.fetched_by, path);
  }
}

TEST(StepRowsTest, AStepWithRowsOfTwoPathsIsRefused) {
  Lane lane;
  const absl::Status both = Collect({AttentionPath::kFetch, AttentionPath::kSparse}, lane);
  EXPECT_EQ(both.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(both.message()), HasSubstr("step 5 has rows of two paths that fetch"));
  for (const AttentionPath path : {AttentionPath::kFetch, AttentionPath::kSparse}) {
    const absl::Status mixed = Collect({AttentionPath::kRemote, path}, lane);
    EXPECT_EQ(mixed.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(mixed.message()),
                HasSubstr("step 5 has rows that attend here and rows that fetch"));
  }
}

// An epoch keeps activations of those tokens alone whose path reads them.
TEST(StepRowsTest, TokensBringTheActivationsOfTheirPath) {
  for (const bool chunks : {false, true}) {
    for (const AttentionPath path : {AttentionPath::kRecompute, AttentionPath::kFetch,
                                     AttentionPath::kSparse, AttentionPath::kRemote}) {
      Lane lane;
      ASSERT_TRUE(Collect({path, path}, lane, 0, chunks).ok());
      const bool brings = path == AttentionPath::kRecompute;
      EXPECT_EQ(lane.activation_width, brings ? 40u : 0u);
      EXPECT_EQ(lane.chunk_tokens, chunks ? 8u : path == AttentionPath::kRemote ? 0u : 2u);
      for (const Chunk& chunk : lane.chunks) {
        EXPECT_EQ(chunk.kept, brings ? Kept::kAll : Kept::kKv);
      }
    }
  }
  Lane lane;
  const absl::Status mixed =
      Collect({AttentionPath::kRemote, AttentionPath::kRecompute}, lane, 0, /*chunks=*/true);
  EXPECT_EQ(mixed.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(mixed.message()),
              HasSubstr("tokens with activations of 0 and of 40 elements"));
}

// Windows have room for the sets of so many.
TEST(StepRowsTest, RowsOfMoreSequencesThanTheEpochHasAreRefused) {
  const std::vector<AttentionPath> three(3, AttentionPath::kSparse);
  Lane lane;
  EXPECT_TRUE(Collect(three, lane, 0, /*chunks=*/false, /*row_sequences_max=*/3).ok());
  const absl::Status refused = Collect(three, lane, 0, /*chunks=*/false, /*row_sequences_max=*/2);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3 runs of rows for a window"));
  EXPECT_TRUE(Collect(three, lane, 0, /*chunks=*/true, /*row_sequences_max=*/2).ok());
}

TEST(StepRowsTest, OnlyRowsOfPathRecomputeMayBeRecomputed) {
  Lane lane;
  EXPECT_TRUE(Collect({AttentionPath::kRecompute}, lane, 512).ok());
  const absl::Status refused = Collect({AttentionPath::kFetch}, lane, 512);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("keeps no activations"));
}

// Two nodes have the spans of a sequence in turn. Rows over the border of two of these bring their
// own tokens to both.
TEST(StepRowsTest, OfACutSequenceTheSpansThatLieHereAreFetched) {
  const plan::EpochConfig config{.lanes = 1,
                                 .rows_max = 8,
                                 .chunk_tokens_max = 8,
                                 .sequence_tokens_max = 1024,
                                 .layers = {{.query_heads = 2, .kv_heads = 1, .head_dim = 32}},
                                 .compute_nodes = {"c0"},
                                 .attention_paths = {AttentionPath::kFetch},
                                 .fetch_bytes = 1 << 20,
                                 .memory_nodes = {"m0", "m1"},
                                 .slots = {1024, 1024},
                                 .partition = Partition::kTokenRange,
                                 .span_tokens = 256};
  plan::StepPlan plan{.step = 5};
  plan.joins.push_back({.id = 1, .path = AttentionPath::kFetch});
  for (uint32_t span = 0; span < 3; ++span) {
    plan.allocations.push_back(
        {.sequence = 1,
         .extent = {.first_slot = 300 * span, .tokens = span < 2 ? 256u : 20u},
         .memory_node = span % 2});
  }
  for (uint32_t position = 510; position < 514; ++position) {
    plan.rows.push_back({.sequence = 1, .position = position});
  }
  for (const uint32_t node : {0u, 1u}) {
    SCOPED_TRACE(node);
    plan::SlotTables tables({.node = node, .slots = 1024, .span_tokens = 256, .holds_all = true});
    ASSERT_TRUE(tables.Apply(plan).ok());
    Lane lane;
    const absl::Status collected = CollectRows(config, tables, plan, lane);
    ASSERT_TRUE(collected.ok()) << collected;
    EXPECT_TRUE(lane.rows.empty());
    EXPECT_EQ(lane.chunk_tokens, 2u);
    ASSERT_EQ(lane.fetched.size(), node == 0 ? 2u : 1u);
    const FetchedRun& first = lane.fetched.front();
    EXPECT_EQ(first.run.before, node == 0 ? 256u : 254u);
    EXPECT_EQ(first.run.tokens, node == 0 ? 0u : 2u);
    EXPECT_THAT(first.slots.kv,
                ::testing::ElementsAre(node == 0 ? Extent{0, 256} : Extent{300, 254}));
    EXPECT_EQ(lane.fetched.back().run.before, node == 0 ? 0u : 254u);
    EXPECT_EQ(lane.fetched.back().run.tokens, 2u);
  }
  plan::SlotTables tables({.node = 1, .slots = 1024, .span_tokens = 256, .holds_all = true});
  ASSERT_TRUE(tables.Apply(plan).ok());
  plan.rows = {{.sequence = 1, .position = 532}};
  Lane lane;
  EXPECT_THAT(std::string(CollectRows(config, tables, plan, lane).message()),
              HasSubstr("a row at position 532 of a sequence with slots for 532"));
}

// A prompt's chunk has tokens of three spans, of which m0 has the first and the last one. There is
// one tail for both.
TEST(StepRowsTest, OfAPromptInInt8EachSpanIsStoredByItself) {
  plan::EpochConfig config{.lanes = 1,
                           .rows_max = 8,
                           .chunk_tokens_max = 512,
                           .sequence_tokens_max = 1024,
                           .layers = {{.query_heads = 2, .kv_heads = 1, .head_dim = 32}},
                           .compute_nodes = {"c0"},
                           .memory_nodes = {"m0", "m1"},
                           .slots = {1024, 1024},
                           .partition = Partition::kTokenRange,
                           .span_tokens = 256};
  plan::StepPlan plan{.step = 5};
  plan.joins.push_back({.id = 1});
  plan.allocations = {{1, {0, 256}, 0}, {1, {0, 256}, 1}, {1, {300, 88}, 0}};
  plan.chunks = {{.sequence = 1, .first_token = 200, .tokens = 400}};
  for (const uint32_t tails : {0u, 4u}) {
    SCOPED_TRACE(tails);
    config.int8_tails = tails;
    plan::SlotTables tables(
        {.node = 0, .slots = 1024, .span_tokens = 256, .holds_all = true, .tails = tails});
    ASSERT_TRUE(tables.Apply(plan).ok());
    Lane lane;
    const absl::Status collected = CollectRows(config, tables, plan, lane);
    ASSERT_TRUE(collected.ok()) << collected;
    EXPECT_EQ(lane.chunk_tokens, 144u);
    if (tails == 0) {
      ASSERT_EQ(lane.chunks.size(), 1u);
      EXPECT_THAT(lane.chunks[0].slots, ::testing::ElementsAre(Extent{200, 56}, Extent{300, 88}));
      continue;
    }
    ASSERT_EQ(lane.chunks.size(), 2u);
    EXPECT_EQ(lane.chunks[0].first_token, 200u);
    EXPECT_EQ(lane.chunks[0].tokens, 56u);
    EXPECT_EQ(lane.chunks[1].first_token, 512u);
    EXPECT_EQ(lane.chunks[1].tokens, 88u);
    EXPECT_EQ(lane.chunks[0].sequence, lane.chunks[1].sequence);
  }
}

// A row stands behind two spans of 256 tokens, of which m0 has the first and m1 the second: as much
// of each comes as activations, and what is made from token numbers is all in the first one.
TEST(StepRowsTest, OfTheSpansThatLieHereWhatThePlanSaysIsMadeAgain) {
  plan::EpochConfig config{.lanes = 1,
                           .rows_max = 8,
                           .chunk_tokens_max = 8,
                           .sequence_tokens_max = 1024,
                           .layers = {{.query_heads = 2, .kv_heads = 1, .head_dim = 32}},
                           .compute_nodes = {"c0"},
                           .attention_paths = {AttentionPath::kRecompute},
                           .fetch_bytes = 1 << 20,
                           .activation_width = 40,
                           .memory_nodes = {"m0", "m1"},
                           .slots = {1024, 1024},
                           .partition = Partition::kTokenRange,
                           .span_tokens = 256};
  plan::StepPlan plan{.step = 5, .recomputed = plan::kRecomputeUnit / 2};
  plan.joins.push_back({.id = 1, .path = AttentionPath::kRecompute});
  plan.allocations = {{1, {0, 256}, 0}, {1, {320, 256}, 1}, {1, {600, 1}, 1}};
  plan.rows = {{.sequence = 1, .position = 512}};
  const auto collect = [&](uint32_t node) {
    plan::SlotTables tables({.node = node, .slots = 1024, .span_tokens = 256, .holds_all = true});
    EXPECT_TRUE(tables.Apply(plan).ok());
    Lane lane;
    const absl::Status collected = CollectRows(config, tables, plan, lane);
    EXPECT_TRUE(collected.ok()) << collected;
    EXPECT_EQ(lane.chunk_tokens, node);
    EXPECT_EQ(lane.fetched.size(), node + 1);
    lane.fetched.front().sequence = nullptr;  // The tables end here.
    return lane.fetched.front();
  };
  for (const uint32_t node : {0u, 1u}) {
    SCOPED_TRACE(node);
    const FetchedRun fetched = collect(node);
    const uint32_t slot = 320 * node;
    EXPECT_EQ(fetched.run.recomputed, 128u);
    EXPECT_THAT(fetched.slots.activations, ::testing::ElementsAre(Extent{slot, 128}));
    EXPECT_THAT(fetched.slots.kv, ::testing::ElementsAre(Extent{slot + 128, 128}));
  }
  config.activation_width = 0;
  config.made_tokens_max = 512;
  EXPECT_EQ(collect(0).run.kept, 256u);
  EXPECT_THAT(collect(0).slots.kv, ::testing::IsEmpty());
  EXPECT_EQ(collect(1).run.kept, 0u);
  EXPECT_THAT(collect(1).slots.kv, ::testing::ElementsAre(Extent{320, 256}));
}

// Slots of path hybrid are numbered by themselves. In the arena of K and V they lie behind those of
// others, and in that of activations are no others.
TEST(StepRowsTest, SlotsOfHybridLieBehindThoseOfOthers) {
  const plan::EpochConfig config{
      .lanes = 1,
      .rows_max = 8,
      .chunk_tokens_max = 100,
      .sequence_tokens_max = 1024,
      .layers = {{.query_heads = 2, .kv_heads = 1, .head_dim = 32}},
      .compute_nodes = {"c0"},
      .attention_paths = {AttentionPath::kRemote, AttentionPath::kHybrid},
      .fetch_bytes = 1 << 20,
      .activation_width = 40,
      .activation_share = 512,
      .memory_nodes = {"m0"},
      .slots = {64},
      .hybrid_slots = {96}};
  plan::StepPlan plan{.step = 5};
  plan.joins = {{.id = 1, .path = AttentionPath::kHybrid}, {.id = 2}};
  plan.allocations = {{1, {0, 80}, 0}, {2, {0, 40}, 0}};
  plan::SlotTables tables({.slots = 64, .hybrid_slots = 96});
  ASSERT_TRUE(tables.Apply(plan).ok());

  plan.rows = {{.sequence = 1, .position = 39}};
  Lane lane;
  ASSERT_TRUE(CollectRows(config, tables, plan, lane).ok());
  ASSERT_EQ(lane.fetched.size(), 1u);
  EXPECT_THAT(lane.fetched[0].slots.kv, ::testing::ElementsAre(Extent{64, 23}));
  EXPECT_THAT(lane.fetched[0].slots.activations, ::testing::ElementsAre(Extent{0, 16}));
  EXPECT_EQ(lane.activation_width, 40u);
  ASSERT_EQ(lane.chunks.size(), 1u);
  EXPECT_THAT(lane.chunks[0].slots, ::testing::ElementsAre(Extent{64 + 23, 1}));

  plan.rows.clear();
  plan.chunks = {{.sequence = 1, .tokens = 32}};
  ASSERT_TRUE(CollectRows(config, tables, plan, lane).ok());
  ASSERT_EQ(lane.chunks.size(), 2u);
  EXPECT_THAT(lane.chunks[0].slots, ::testing::ElementsAre(Extent{64, 16}));
  EXPECT_EQ(lane.chunks[0].kept, Kept::kKv);
  EXPECT_THAT(lane.chunks[1].slots, ::testing::ElementsAre(Extent{0, 16}));
  EXPECT_EQ(lane.chunks[1].kept, Kept::kActivation);

  plan.chunks = {{.sequence = 2, .tokens = 32}};
  ASSERT_TRUE(CollectRows(config, tables, plan, lane).ok());
  ASSERT_EQ(lane.chunks.size(), 1u);
  EXPECT_THAT(lane.chunks[0].slots, ::testing::ElementsAre(Extent{0, 32}));
  EXPECT_EQ(lane.activation_width, 0u) << "their tokens bring none";
  plan.chunks.clear();
  plan.rows = {{.sequence = 2, .position = 39}};
  ASSERT_TRUE(CollectRows(config, tables, plan, lane).ok());
  ASSERT_EQ(lane.rows.size(), 1u);
  EXPECT_EQ(lane.rows[0].slot.first_slot, 39u);
}

// Each slot is sent as what it holds, and a prompt's tokens of other nodes' spans are nothing here.
TEST(StepRowsTest, SlotsOfASpanAreOfTwoKinds) {
  const plan::EpochConfig config{.lanes = 1,
                                 .rows_max = 8,
                                 .chunk_tokens_max = 300,
                                 .sequence_tokens_max = 1024,
                                 .layers = {{.query_heads = 2, .kv_heads = 1, .head_dim = 32}},
                                 .compute_nodes = {"c0"},
                                 .attention_paths = {AttentionPath::kHybrid},
                                 .fetch_bytes = 1 << 20,
                                 .activation_width = 40,
                                 .activation_share = 512,
                                 .memory_nodes = {"m0", "m1"},
                                 .slots = {1024, 1024},
                                 .partition = Partition::kTokenRange,
                                 .span_tokens = 256};
  plan::StepPlan plan{.step = 5};
  plan.joins.push_back({.id = 1, .path = AttentionPath::kHybrid});
  plan.allocations = {{1, {0, 256}, 0}, {1, {32, 40}, 1}};
  plan.chunks = {{.sequence = 1, .first_token = 200, .tokens = 40}};
  plan::SlotTables tables({.node = 1, .slots = 1024, .span_tokens = 256, .holds_all = true});
  ASSERT_TRUE(tables.Apply(plan).ok());
  Lane lane;
  ASSERT_TRUE(CollectRows(config, tables, plan, lane).ok());
  EXPECT_TRUE(lane.chunks.empty());
  EXPECT_EQ(lane.chunk_tokens, 0u);

  plan.chunks.clear();
  plan.rows = {{.sequence = 1, .position = 295}};
  ASSERT_TRUE(CollectRows(config, tables, plan, lane).ok());
  ASSERT_EQ(lane.fetched.size(), 1u);
  EXPECT_EQ(lane.fetched[0].run.before, 39u);
  EXPECT_EQ(lane.fetched[0].run.recomputed, 16u);
  EXPECT_THAT(lane.fetched[0].slots.activations, ::testing::ElementsAre(Extent{16, 16}));
  EXPECT_THAT(lane.fetched[0].slots.kv, ::testing::ElementsAre(Extent{16, 23}));
  ASSERT_EQ(lane.chunks.size(), 1u);
  EXPECT_EQ(lane.chunks[0].kept, Kept::kKv);
}

}  // namespace
}  // namespace lamina::memory_node
