// SPDX-License-Identifier: Apache-2.0
#include "compute_node/memory_formula.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/kv_form.h"
#include "plan/fetch_pieces.h"
#include "plan/slot_kinds.h"

namespace lamina::compute_node {
namespace {

constexpr AttentionDescriptor kLayer = {.query_heads = 6, .kv_heads = 3, .head_dim = 64};
constexpr uint64_t kSlotBytes = 2 * 64 * 2;  // K and V of one head.
constexpr uint64_t kSlots = 1008;            // Whole tiles of the longest sequence.
constexpr uint64_t kWindows = 2 * 2 * 2;     // Two for each lane and memory node.
constexpr uint64_t kWeights = 12345;

// Windows have room for `heads` KV heads of the longest sequence.
plan::EpochConfig Fetching(uint64_t heads) {
  return {.lanes = 2,
          .rows_max = 4,
          .chunk_tokens_max = 60,
          .sequence_tokens_max = 1000,
          .layers = {kLayer, kLayer},
          .compute_nodes = {"c0"},
          .attention_paths = {plan::AttentionPath::kFetch},
          .fetch_bytes = kWindows * heads * kSlots * kSlotBytes,
          .memory_nodes = {"m0", "m1"}};
}

model::ModelConfig Model() {
  model::ModelConfig model;
  model.width = 100;
  model.ffn_width = 200;
  return model;
}

telemetry::FormulaMemory Formula(const plan::EpochConfig& config) {
  return FormulaOf(config, Model(), kWeights);
}

TEST(MemoryFormulaTest, CountsWindowsOfAllLanesAndNodesAndRowsOfAllLanes) {
  const uint64_t rows = 2 * (4 + 60);
  EXPECT_EQ(Formula(Fetching(1)),
            (telemetry::FormulaMemory{.paper = telemetry::MemoryPaper::kHeadInfer,
                                      .weights = kWeights,
                                      .windows = kWindows * kSlots * kSlotBytes,
                                      .activations = rows * (100 + 2 * 200) * 2,
                                      .heads = 1}));
}

TEST(MemoryFormulaTest, TheGroupIsThatOfTheLongestSequence) {
  for (const uint32_t tails : {0, 1}) {
    for (const uint64_t heads : {1, 2, 3, 4}) {
      plan::EpochConfig config = Fetching(heads);
      config.int8_tails = tails;
      for (const uint64_t less : {0, 8}) {
        config.fetch_bytes -= less;
        std::vector<plan::FetchPiece> pieces;
        const plan::FetchRun longest{.before = config.sequence_tokens_max,
                                     .tokens = tails * kInt8BlockTokens};
        plan::PiecesOf(kLayer, {&longest, 1}, plan::FetchLimitsOf(config), pieces);
        if (plan::CheckFetch(config).ok()) {
          EXPECT_EQ(Formula(config).heads, pieces[0].heads.count)
              << heads << " less " << less << " tails " << tails;
        }
      }
    }
  }
  plan::EpochConfig fixed = Fetching(3);
  fixed.fetch_heads = 2;
  EXPECT_EQ(Formula(fixed).heads, 2u);
}

TEST(MemoryFormulaTest, AMemoryNodeSendsTheHeadsThatItHolds) {
  plan::EpochConfig config = Fetching(3);
  config.partition = Partition::kHead;
  config.heads = {{.first = 0, .count = 1}, {.first = 1, .count = 2}};
  EXPECT_EQ(Formula(config).heads, 2u);
}

// Windows need not have room for a head of the longest sequence.
TEST(MemoryFormulaTest, WhereSequencesAreCutTheContextIsASpan) {
  plan::EpochConfig config = Fetching(1);
  config.partition = Partition::kTokenRange;
  config.span_tokens = 256;
  config.fetch_bytes = kWindows * 2 * 256 * kSlotBytes;
  ASSERT_TRUE(plan::CheckFetch(config).ok()) << plan::CheckFetch(config);
  EXPECT_EQ(Formula(config).heads, 2u);
  EXPECT_EQ(Formula(config).windows, config.fetch_bytes);
}

TEST(MemoryFormulaTest, TheLayerThatTakesMostCounts) {
  plan::EpochConfig config = Fetching(3);
  config.layers[1].kv_heads = 1;
  EXPECT_EQ(Formula(config).windows, kWindows * 3 * kSlots * kSlotBytes);
}

// Closed blocks are INT8, and the open one is bf16.
TEST(MemoryFormulaTest, Int8TakesFewerBytesBehindTheOpenBlock) {
  constexpr uint64_t kInt8Bytes = 2 * 64 + 4 * (1 + 1);  // The latter are scales of V and of K.
  constexpr uint64_t kHead = 1024 * kInt8Bytes + 64 * kSlotBytes;
  plan::EpochConfig config = Fetching(3);
  config.int8_tails = 1;
  config.fetch_bytes = kWindows * 2 * kHead;
  EXPECT_EQ(Formula(config).paper, telemetry::MemoryPaper::kHeadInfer);
  EXPECT_EQ(Formula(config).heads, 2u);
  EXPECT_EQ(Formula(config).windows, config.fetch_bytes);
  EXPECT_EQ(Formula(config).activations, Formula(Fetching(3)).activations);
  config.fetch_bytes -= kWindows;
  EXPECT_EQ(Formula(config).heads, 1u);
}

plan::EpochConfig Recomputing(uint32_t width) {
  plan::EpochConfig config = Fetching(3);
  config.attention_paths = {plan::AttentionPath::kRecompute};
  config.activation_width = width;
  return config;
}

// The most is that of all tokens as K and V, or as activations.
TEST(MemoryFormulaTest, BuffersOfKvprHaveRoomForAnySplit) {
  EXPECT_EQ(Formula(Recomputing(100)),
            (telemetry::FormulaMemory{.paper = telemetry::MemoryPaper::kKvpr,
                                      .weights = kWeights,
                                      .windows = kWindows * kSlots * 3 * kSlotBytes}));
  EXPECT_EQ(Formula(Recomputing(500)).windows, kWindows * kSlots * 500 * 2);
}

TEST(MemoryFormulaTest, BuffersOfKvprAreTheLeastWindowsThatAreServed) {
  for (const uint32_t width : {100, 383, 384, 385, 500}) {
    plan::EpochConfig config = Recomputing(width);
    config.fetch_bytes = Formula(config).windows;
    EXPECT_TRUE(plan::CheckFetch(config).ok()) << width << ": " << plan::CheckFetch(config);
    config.fetch_bytes -= 1;
    EXPECT_FALSE(plan::CheckFetch(config).ok()) << width;
  }
}

TEST(MemoryFormulaTest, ActivationsThatStayAreOfAllLayers) {
  plan::EpochConfig config = Recomputing(100);
  config.resident_tokens = 32;
  EXPECT_EQ(Formula(config).resident, 32u * 2 * 100 * 2);
  EXPECT_EQ(Formula(config).windows, Formula(Recomputing(100)).windows);
}

TEST(MemoryFormulaTest, ActivationsAreSpreadAsHeadsAre) {
  plan::EpochConfig config = Recomputing(900);
  config.partition = Partition::kHead;
  config.heads = {{.first = 0, .count = 1}, {.first = 1, .count = 2}};
  EXPECT_EQ(Formula(config).windows, kWindows * kSlots * 600 * 2);
  config.activation_width = 300;
  EXPECT_EQ(Formula(config).windows, kWindows * kSlots * 2 * kSlotBytes);
}

plan::EpochConfig Hybrid(uint32_t width, uint32_t share) {
  plan::EpochConfig config = Fetching(3);
  config.attention_paths = {plan::AttentionPath::kHybrid};
  config.activation_width = width;
  config.activation_share = share;
  return config;
}

TEST(MemoryFormulaTest, BuffersOfHybridServeHaveTheShareOfEitherKind) {
  plan::EpochConfig config = Hybrid(100, plan::SlotKinds::kUnit / 4);
  config.resident_tokens = 16;
  EXPECT_EQ(Formula(config),
            (telemetry::FormulaMemory{.paper = telemetry::MemoryPaper::kHybridServe,
                                      .weights = kWeights,
                                      .windows = kWindows * (252 * 100 * 2 + 756 * 3 * kSlotBytes),
                                      .resident = 16u * 2 * 100 * 2}));
}

// An epoch has room for none where no slot holds one.
TEST(MemoryFormulaTest, WithoutActivationsHeadsComeByGroups) {
  EXPECT_EQ(Formula(Hybrid(0, 0)), Formula(Fetching(3)));
}

TEST(MemoryFormulaTest, OfSeveralPoliciesTheOneThatKeepsActivationsIsTold) {
  for (plan::EpochConfig config : {Recomputing(100), Hybrid(100, plan::SlotKinds::kUnit / 2)}) {
    const telemetry::FormulaMemory alone = Formula(config);
    config.attention_paths.Add(plan::AttentionPath::kFetch);
    config.attention_paths.Add(plan::AttentionPath::kRemote);
    EXPECT_EQ(Formula(config), alone);
  }
}

TEST(MemoryFormulaTest, BuffersOfHybridServeAreNoMoreThanTheLeastWindowsThatAreServed) {
  for (const uint32_t width : {100, 500}) {
    for (const uint32_t share : {1u, plan::SlotKinds::kUnit / 3, plan::SlotKinds::kUnit}) {
      plan::EpochConfig config = Hybrid(width, share);
      // Each kind ends with a tile of its own.
      const uint64_t least =
          kWindows * (kSlots + 16) * std::max<uint64_t>(3 * kSlotBytes, uint64_t{2} * width);
      config.fetch_bytes = least;
      EXPECT_TRUE(plan::CheckFetch(config).ok()) << plan::CheckFetch(config);
      EXPECT_LE(Formula(config).windows, least) << width << " share " << share;
      config.fetch_bytes -= 1;
      EXPECT_FALSE(plan::CheckFetch(config).ok()) << width << " share " << share;
    }
  }
}

TEST(MemoryFormulaTest, SaysNothingOfWhatItDoesNotKnow) {
  plan::EpochConfig config = Fetching(3);
  config.attention_paths = {plan::AttentionPath::kRemote};
  EXPECT_EQ(Formula(config), telemetry::FormulaMemory());
  config = Fetching(3);
  config.made_tokens_max = 64;
  EXPECT_EQ(Formula(config), telemetry::FormulaMemory());
}

// A token of a mixture is in the hidden layers of all experts that are chosen for it.
TEST(MemoryFormulaTest, ActivationsAreThoseOfChosenExperts) {
  model::ModelConfig model = Model();
  model.experts_per_token = 3;
  EXPECT_EQ(FormulaOf(Fetching(1), model, 0).activations, 2u * 64 * (100 + 2 * 600) * 2);
}

}  // namespace
}  // namespace lamina::compute_node
