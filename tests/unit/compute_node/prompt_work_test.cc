// SPDX-License-Identifier: Apache-2.0
#include "compute_node/prompt_work.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace lamina::compute_node {
namespace {

constexpr uint32_t kMillionTokens = 1u << 20;
constexpr int64_t kPairsOfATimeout = 4'194'304;

// Rows of consecutive tokens of the sequence.
void AddRows(plan::SequenceId sequence, uint32_t first, uint32_t tokens, plan::StepPlan& plan) {
  for (uint32_t i = 0; i < tokens; ++i) {
    plan.rows.push_back({.sequence = sequence, .position = first + i});
  }
}

TEST(PromptWorkTest, ChunksAndRowsOfTheSameTokensAreTheSameWork) {
  plan::StepPlan chunk;
  chunk.chunks = {{.sequence = 1, .first_token = 1000, .tokens = 24}};
  plan::StepPlan rows;
  AddRows(1, 1000, 24, rows);
  const PromptWork expected{.tokens = 24, .pairs = 24 * 1024};

  EXPECT_EQ(PromptWorkOf(chunk), expected);
  EXPECT_EQ(PromptWorkOf(rows), expected);
}

TEST(PromptWorkTest, RowsOfSeveralSequencesAddUp) {
  plan::StepPlan plan;
  plan.chunks = {{.sequence = 9, .tokens = 10}, {.sequence = 8, .first_token = 90, .tokens = 10}};
  AddRows(1, 5, 2, plan);
  AddRows(2, 7, 3, plan);  // The next positions, of another sequence.

  EXPECT_EQ(PromptWorkOf(plan),
            (PromptWork{.tokens = 25, .pairs = 10 * 10 + 10 * 100 + 2 * 7 + 3 * 10}));
}

TEST(PromptWorkTest, RowsByThemselvesAreNoPrompts) {
  plan::StepPlan plan;
  EXPECT_EQ(PromptWorkOf(plan), PromptWork());
  AddRows(1, 5000, 1, plan);
  AddRows(2, 5001, 1, plan);
  AddRows(2, 6000, 1, plan);  // Not the next token of its sequence.

  EXPECT_EQ(PromptWorkOf(plan), PromptWork());

  AddRows(2, 6001, 1, plan);
  EXPECT_EQ(PromptWorkOf(plan), (PromptWork{.tokens = 2, .pairs = 2 * 6002}));
}

TEST(PromptWorkTest, WithoutPromptsMemoryNodesAreGivenUpOnFirst) {
  EXPECT_EQ(OutputsTimeout({}, Seconds(60)), Seconds(60));
  EXPECT_EQ(ReplicaTimeout({}, 80, Seconds(60)), Seconds(120));
}

TEST(PromptWorkTest, RowsOfALongPromptAreAwaitedInProportion) {
  plan::StepPlan plan;
  AddRows(1, kMillionTokens - 512, 512, plan);
  const PromptWork work = PromptWorkOf(plan);

  EXPECT_EQ(work.pairs, int64_t{512} * kMillionTokens);
  EXPECT_EQ(OutputsTimeout(work, Seconds(60)), Seconds(60) * (1 + 128));
  // 512 tokens are eight times 64.
  EXPECT_EQ(ReplicaTimeout(work, 80, Seconds(60)), Seconds(120) * (1 + 8 + 80 * 128));
}

// One that waits in each layer for as long as it may wait for a memory node is not blamed itself.
TEST(PromptWorkTest, AReplicaHasTimeForTheAttentionOfAllItsLayers) {
  for (const int64_t pairs : {kPairsOfATimeout, 2 * kPairsOfATimeout - 1, 5 * kPairsOfATimeout}) {
    for (const int64_t layers : {1, 32, 80}) {
      const PromptWork work{.tokens = 2, .pairs = pairs};
      EXPECT_GT(ReplicaTimeout(work, layers, Seconds(60)),
                layers * OutputsTimeout(work, Seconds(60)))
          << pairs << " pairs, " << layers << " layers";
    }
  }
}

// Layers share what is less than a timeout for one of them.
TEST(PromptWorkTest, PairsOfLayersAddUp) {
  const PromptWork work{.pairs = kPairsOfATimeout / 4};
  EXPECT_EQ(OutputsTimeout(work, Seconds(60)), Seconds(60));
  EXPECT_EQ(ReplicaTimeout(work, 80, Seconds(60)), Seconds(120) * (1 + 20));
}

}  // namespace
}  // namespace lamina::compute_node
