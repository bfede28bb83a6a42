// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace lamina::compute_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kVocabulary = 100;
constexpr uint32_t kSpanTokens = 256;

plan::SequenceJoin Join(plan::SequenceId id, uint32_t tokens, uint32_t memory_node) {
  plan::SequenceJoin join{
      .id = id, .prompt_tokens = tokens, .tokens_max = 4000, .memory_node = memory_node};
  for (uint32_t i = 0; i < tokens; ++i) {
    join.tokens.push_back(static_cast<TokenId>((id + i) % kVocabulary));
  }
  return join;
}

plan::DecodeRow LastTokenOf(plan::SequenceId id, uint32_t tokens) {
  return {.sequence = id, .position = tokens - 1};
}

class StepLayoutTest : public ::testing::Test {
 protected:
  StepLayoutTest() {
    config_.memory_nodes = {"m0", "m1"};
    config_.rows_max = 4;
    config_.chunk_tokens_max = 32;
    config_.scratch_tokens = 1000;
    lane_.paths.resize(1);
  }

  absl::Status LayOutPlan(plan::StepPlan plan) {
    lane_.plan = std::move(plan);
    EXPECT_TRUE(sequences_.Apply(lane_.plan, kVocabulary, config_.span_tokens).ok());
    return LayOut(config_, sequences_, path_of_, lane_);
  }

  std::vector<uint32_t> TailRows() const {
    std::vector<uint32_t> rows;
    for (const TailRow& row : lane_.tail) {
      rows.push_back(row.row);
    }
    return rows;
  }

  plan::EpochConfig config_;
  SequenceTable sequences_;
  std::function<uint32_t(const Sequence&)> path_of_ = [](const Sequence&) { return 0; };
  Lane lane_;
};

TEST_F(StepLayoutTest, RowsOfAMemoryNodeAreAdjacentInThePlansOrder) {
  ASSERT_TRUE(LayOutPlan({.joins = {Join(1, 5, 1), Join(2, 6, 0), Join(3, 7, 1)},
                          .rows = {LastTokenOf(1, 5), LastTokenOf(2, 6), LastTokenOf(3, 7)}})
                  .ok());

  EXPECT_THAT(lane_.positions, ElementsAre(5u, 4u, 6u));
  EXPECT_THAT(lane_.token_ids, ElementsAre(2 + 5u, 1 + 4u, 3 + 6u));
  EXPECT_EQ(lane_.decode_rows, 3u);
  EXPECT_THAT(TailRows(), ElementsAre(0u, 1u, 2u));
  EXPECT_FALSE(lane_.pinned);
}

TEST_F(StepLayoutTest, ALaterStepForgetsTheOneBefore) {
  ASSERT_TRUE(LayOutPlan({.joins = {Join(1, 5, 1), Join(2, 6, 0)},
                          .rows = {LastTokenOf(2, 6)},
                          .chunks = {{.sequence = 1, .tokens = 5, .last = true}}})
                  .ok());
  ASSERT_TRUE(LayOutPlan({.rows = {LastTokenOf(2, 6)}}).ok());

  EXPECT_THAT(lane_.positions, ElementsAre(5u));
  EXPECT_THAT(lane_.chunks, IsEmpty());
  EXPECT_FALSE(lane_.pinned);
}

TEST_F(StepLayoutTest, ADiscardedRowRunsAndIsNotSampled) {
  ASSERT_TRUE(LayOutPlan({.joins = {Join(1, 5, 0), Join(2, 6, 0)}}).ok());
  sequences_.Find(1)->finished = true;

  ASSERT_TRUE(LayOutPlan({.rows = {{.sequence = 1, .position = 9}, LastTokenOf(2, 6)}}).ok());

  EXPECT_THAT(lane_.positions, ElementsAre(9u, 5u));
  EXPECT_THAT(TailRows(), ElementsAre(1u));
}

TEST_F(StepLayoutTest, OfChunksTheLastTokenOfTheLastIsSampledForForksToo) {
  plan::SequenceJoin fork = Join(3, 8, 1);
  fork.parent = 2;
  ASSERT_TRUE(LayOutPlan({.joins = {Join(1, 20, 0), Join(2, 8, 1), fork},
                          .chunks = {{.sequence = 1, .tokens = 16},
                                     {.sequence = 2, .tokens = 8, .last = true}}})
                  .ok());

  EXPECT_EQ(lane_.decode_rows, 0u);
  EXPECT_EQ(lane_.positions.size(), 24u);
  EXPECT_EQ(lane_.chunks[1].first_row, 16u);
  ASSERT_EQ(lane_.tail.size(), 2u);
  EXPECT_EQ(lane_.tail[0].sequence, 2u);
  EXPECT_EQ(lane_.tail[1].sequence, 3u);
  EXPECT_THAT(TailRows(), ElementsAre(23u, 23u));
  EXPECT_TRUE(lane_.pinned);
  EXPECT_EQ(RowsRead(lane_, 0, 16).count, 0u);
  EXPECT_EQ(RowsRead(lane_, 16, 8).first, 23u);
  EXPECT_EQ(RowsRead(lane_, 16, 8).count, 1u);
}

TEST_F(StepLayoutTest, EveryTokenThatHasASuccessorIsScored) {
  plan::SequenceJoin scored = Join(1, 6, 0);
  scored.score = true;
  ASSERT_TRUE(
      LayOutPlan({.joins = {scored}, .chunks = {{.sequence = 1, .tokens = 6, .last = true}}}).ok());

  EXPECT_THAT(TailRows(), ElementsAre(0u, 1u, 2u, 3u, 4u));
  EXPECT_TRUE(lane_.tail.back().score);
  EXPECT_EQ(RowsRead(lane_, 0, 6).first, 0u);
  EXPECT_EQ(RowsRead(lane_, 0, 6).count, 5u);
  EXPECT_EQ(RowsRead(lane_, 2, 2).first, 2u);
  EXPECT_EQ(RowsRead(lane_, 2, 2).count, 2u);
}

// Odd sequences take the second of two paths.
TEST_F(StepLayoutTest, RowsAndChunksOfAPathAreAdjacent) {
  lane_.paths.resize(2);
  path_of_ = [](const Sequence& sequence) { return static_cast<uint32_t>(sequence.join.id % 2); };
  ASSERT_TRUE(LayOutPlan({.joins = {Join(1, 5, 0), Join(2, 6, 1), Join(3, 7, 0), Join(4, 8, 0),
                                    Join(5, 9, 0), Join(6, 4, 0)},
                          .rows = {LastTokenOf(1, 5), LastTokenOf(2, 6), LastTokenOf(3, 7)},
                          .chunks = {{.sequence = 5, .tokens = 9, .last = true},
                                     {.sequence = 4, .tokens = 8, .last = true},
                                     {.sequence = 6, .tokens = 4, .last = true}}})
                  .ok());

  EXPECT_THAT(lane_.positions.front(), 5u);
  EXPECT_EQ(lane_.paths[0].decode.first, 0u);
  EXPECT_EQ(lane_.paths[0].decode.count, 1u);
  EXPECT_EQ(lane_.paths[1].decode.first, 1u);
  EXPECT_EQ(lane_.paths[1].decode.count, 2u);
  ASSERT_EQ(ChunksOf(lane_, lane_.paths[0]).size(), 2u);
  EXPECT_EQ(ChunksOf(lane_, lane_.paths[0])[0].plan.sequence, 4u);
  EXPECT_EQ(ChunksOf(lane_, lane_.paths[0])[1].plan.sequence, 6u);
  ASSERT_EQ(ChunksOf(lane_, lane_.paths[1]).size(), 1u);
  EXPECT_EQ(ChunksOf(lane_, lane_.paths[1])[0].plan.sequence, 5u);
  EXPECT_EQ(ChunksOf(lane_, lane_.paths[1])[0].first_row, 3u + 8 + 4);
}

TEST_F(StepLayoutTest, APathThatTheEpochDoesNotHaveIsRefused) {
  path_of_ = [](const Sequence&) { return 1; };
  plan::SequenceJoin join = Join(7, 5, 0);
  join.path = plan::AttentionPath::kLocal;
  const absl::Status status =
      LayOutPlan({.joins = {join}, .chunks = {{.sequence = 7, .tokens = 5, .last = true}}});

  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "sequence 7 attends by path 1, which the epoch does not have");
}

// Each alone may have its most, both together may not.
TEST_F(StepLayoutTest, AStepHasAtMostItsRowsAndTokensTogether) {
  ASSERT_TRUE(LayOutPlan({.joins = {Join(1, 5, 0), Join(2, 40, 0)}}).ok());
  const plan::StepPlan both{.rows = std::vector<plan::DecodeRow>(4, LastTokenOf(1, 5)),
                            .chunks = {{.sequence = 2, .tokens = 29}}};
  ASSERT_TRUE(LayOutPlan(both).ok());

  config_.step_tokens_max = 32;

  EXPECT_THAT(LayOutPlan(both).ToString(), HasSubstr("has 33 rows; at most 32 fit"));
}

// Sequence 1 has spans on m1, m0 and m1.
TEST_F(StepLayoutTest, RunsOfCutSequencesAreCutAtTheBordersOfSpans) {
  config_.partition = Partition::kTokenRange;
  config_.span_tokens = kSpanTokens;
  plan::StepPlan plan{.joins = {Join(1, 600, 0)}};
  for (const uint32_t node : {1u, 0u, 1u}) {
    plan.allocations.push_back(
        {.sequence = 1, .extent = {.first_slot = 0, .tokens = kSpanTokens}, .memory_node = node});
  }
  ASSERT_TRUE(LayOutPlan(plan).ok());

  const std::vector<RowRun> run = {
      {.sequence = 1, .memory_node = 0, .first_row = 7, .first_token = 250, .tokens = 270}};
  const auto cut = CutBySpan(config_, sequences_, run);
  ASSERT_TRUE(cut.ok()) << cut.status();
  ASSERT_EQ(cut->size(), 3u);
  const uint32_t nodes[] = {1, 0, 1};
  const uint32_t tokens[] = {6, 256, 8};
  for (uint32_t i = 0, done = 0; i < 3; done += tokens[i++]) {
    EXPECT_EQ((*cut)[i].memory_node, nodes[i]);
    EXPECT_EQ((*cut)[i].first_row, 7 + done);
    EXPECT_EQ((*cut)[i].first_token, 250 + done);
    EXPECT_EQ((*cut)[i].tokens, tokens[i]);
    EXPECT_TRUE(LiesOn(config_, nodes[i], (*cut)[i]));
    EXPECT_FALSE(LiesOn(config_, 1 - nodes[i], (*cut)[i]));
  }

  const std::vector<RowRun> beyond = {{.sequence = 1, .first_token = 768, .tokens = 1}};
  EXPECT_THAT(CutBySpan(config_, sequences_, beyond).status().ToString(),
              HasSubstr("tokens up to 769 of sequence 1, without slots"));
}

struct BadPlan {
  const char* name;
  plan::StepPlan plan;
  const char* words;
};

class BadStepLayoutTest : public StepLayoutTest, public ::testing::WithParamInterface<BadPlan> {};

TEST_P(BadStepLayoutTest, IsRefused) {
  ASSERT_TRUE(LayOutPlan({.joins = {Join(1, 5, 0), Join(2, 40, 0), Join(3, 5, 2)}}).ok());

  const absl::Status status = LayOutPlan(GetParam().plan);

  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr(GetParam().words));
}

std::vector<BadPlan> BadPlans() {
  return {
      {"UnknownSequence", {.rows = {LastTokenOf(9, 5)}}, "row of sequence 9 position 4"},
      {"AnotherPosition", {.rows = {LastTokenOf(1, 7)}}, "row of sequence 1 position 6"},
      {"UnknownNode", {.rows = {LastTokenOf(3, 5)}}, "row of sequence 3"},
      {"TooManyRows",
       {.rows = std::vector<plan::DecodeRow>(5, LastTokenOf(1, 5))},
       "has 5 rows; at most 36 fit"},
      {"NoTokens", {.chunks = {{.sequence = 1}}}, "chunk [0, +0)"},
      {"BeyondThePrompt", {.chunks = {{.sequence = 1, .tokens = 6}}}, "chunk [0, +6)"},
  };
}

INSTANTIATE_TEST_SUITE_P(Plans, BadStepLayoutTest, ::testing::ValuesIn(BadPlans()),
                         [](const auto& plan) { return plan.param.name; });

}  // namespace
}  // namespace lamina::compute_node
