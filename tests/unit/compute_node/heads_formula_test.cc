// SPDX-License-Identifier: Apache-2.0
#include "compute_node/heads_formula.h"

#include <gtest/gtest.h>

#include <vector>

#include "plan/fetch_pieces.h"

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

TEST(HeadsFormulaTest, CountsWindowsOfAllLanesAndNodesAndRowsOfAllLanes) {
  const uint64_t rows = 2 * (4 + 60);
  EXPECT_EQ(Formula(Fetching(1)),
            (telemetry::FormulaMemory{.weights = kWeights,
                                      .windows = kWindows * kSlots * kSlotBytes,
                                      .activations = rows * (100 + 2 * 200) * 2,
                                      .heads = 1}));
}

TEST(HeadsFormulaTest, TheGroupIsThatOfTheLongestSequence) {
  for (const uint64_t heads : {1, 2, 3, 4}) {
    plan::EpochConfig config = Fetching(heads);
    for (const uint64_t less : {0, 8}) {
      config.fetch_bytes -= less;
      std::vector<plan::FetchPiece> pieces;
      const plan::FetchRun longest{.before = config.sequence_tokens_max};
      plan::PiecesOf(kLayer, {&longest, 1}, plan::FetchLimitsOf(config), pieces);
      if (plan::CheckFetch(config).ok()) {
        EXPECT_EQ(Formula(config).heads, pieces[0].heads.count) << heads << " less " << less;
      }
    }
  }
  plan::EpochConfig fixed = Fetching(3);
  fixed.fetch_heads = 2;
  EXPECT_EQ(Formula(fixed).heads, 2u);
}

TEST(HeadsFormulaTest, AMemoryNodeSendsTheHeadsThatItHolds) {
  plan::EpochConfig config = Fetching(3);
  config.partition = Partition::kHead;
  config.heads = {{.first = 0, .count = 1}, {.first = 1, .count = 2}};
  EXPECT_EQ(Formula(config).heads, 2u);
}

// Windows need not have room for a head of the longest sequence.
TEST(HeadsFormulaTest, WhereSequencesAreCutTheContextIsASpan) {
  plan::EpochConfig config = Fetching(1);
  config.partition = Partition::kTokenRange;
  config.span_tokens = 256;
  config.fetch_bytes = kWindows * 2 * 256 * kSlotBytes;
  ASSERT_TRUE(plan::CheckFetch(config).ok()) << plan::CheckFetch(config);
  EXPECT_EQ(Formula(config).heads, 2u);
  EXPECT_EQ(Formula(config).windows, config.fetch_bytes);
}

TEST(HeadsFormulaTest, TheLayerThatTakesMostCounts) {
  plan::EpochConfig config = Fetching(3);
  config.layers[1].kv_heads = 1;
  EXPECT_EQ(Formula(config).windows, kWindows * 3 * kSlots * kSlotBytes);
}

TEST(HeadsFormulaTest, SaysNothingOfWhatItDoesNotKnow) {
  plan::EpochConfig config = Fetching(3);
  config.attention_paths = {plan::AttentionPath::kRemote};
  EXPECT_EQ(Formula(config), telemetry::FormulaMemory());
  config = Fetching(3);
  config.int8_tails = 1;
  EXPECT_EQ(Formula(config), telemetry::FormulaMemory());
  config = Fetching(3);
  config.activation_width = 100;
  EXPECT_EQ(Formula(config), telemetry::FormulaMemory());
  config = Fetching(3);
  config.made_tokens_max = 64;
  EXPECT_EQ(Formula(config), telemetry::FormulaMemory());
}

// A token of a mixture is in the hidden layers of all experts that are chosen for it.
TEST(HeadsFormulaTest, ActivationsAreThoseOfChosenExperts) {
  model::ModelConfig model = Model();
  model.experts_per_token = 3;
  EXPECT_EQ(FormulaOf(Fetching(1), model, 0).activations, 2u * 64 * (100 + 2 * 600) * 2);
}

}  // namespace
}  // namespace lamina::compute_node
