// SPDX-License-Identifier: Apache-2.0
#include "compute_node/remote_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "compute_node/step_layout.h"

namespace lamina::compute_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kVocabulary = 100;
constexpr uint32_t kSpanTokens = 256;

plan::SequenceJoin Join(plan::SequenceId id, uint32_t tokens, uint32_t memory_node) {
  return {.id = id,
          .tokens = std::vector<TokenId>(tokens, 1),
          .prompt_tokens = tokens,
          .tokens_max = 4000,
          .memory_node = memory_node};
}

plan::DecodeRow LastTokenOf(plan::SequenceId id, uint32_t tokens) {
  return {.sequence = id, .position = tokens - 1};
}

class RemoteRowsTest : public ::testing::Test {
 protected:
  RemoteRowsTest() {
    config_.memory_nodes = {"m0", "m1"};
    config_.rows_max = 4;
    config_.chunk_tokens_max = 32;
    config_.scratch_tokens = 1000;
    lane_.paths.resize(1);
    placed_.nodes.resize(2);
  }

  absl::Status Place(plan::StepPlan plan) {
    lane_.plan = std::move(plan);
    EXPECT_TRUE(sequences_.Apply(lane_.plan, kVocabulary, config_.span_tokens).ok());
    EXPECT_TRUE(LayOut(
                    config_, sequences_, [](const Sequence&) { return 0; }, lane_)
                    .ok());
    return PlaceRemoteRows(config_, sequences_, lane_, lane_.paths[0], placed_);
  }

  plan::EpochConfig config_;
  SequenceTable sequences_;
  Lane lane_;
  RemoteRows placed_;
};

TEST_F(RemoteRowsTest, ANodeGetsTheRowsOfItsSequences) {
  ASSERT_TRUE(Place({.joins = {Join(1, 5, 1), Join(2, 6, 0), Join(3, 7, 1)},
                     .rows = {LastTokenOf(1, 5), LastTokenOf(2, 6), LastTokenOf(3, 7)}})
                  .ok());

  EXPECT_EQ(placed_.nodes[0].rows.first, 0u);
  EXPECT_EQ(placed_.nodes[0].rows.count, 1u);
  EXPECT_EQ(placed_.nodes[1].rows.first, 1u);
  EXPECT_EQ(placed_.nodes[1].rows.count, 2u);
}

TEST_F(RemoteRowsTest, ANodeGetsKAndVOfTheChunksOfItsSequences) {
  ASSERT_TRUE(
      Place({.joins = {Join(1, 20, 0), Join(2, 8, 1)},
             .chunks = {{.sequence = 1, .tokens = 16}, {.sequence = 2, .tokens = 8, .last = true}}})
          .ok());

  EXPECT_EQ(placed_.nodes[0].kv_rows.count, 16u);
  EXPECT_EQ(placed_.nodes[1].kv_rows.first, 16u);
  EXPECT_EQ(placed_.nodes[1].kv_rows.count, 8u);
}

TEST_F(RemoteRowsTest, ALaterStepForgetsTheOneBefore) {
  ASSERT_TRUE(Place({.joins = {Join(1, 5, 1), Join(2, 6, 0)},
                     .rows = {LastTokenOf(2, 6)},
                     .chunks = {{.sequence = 1, .tokens = 5, .last = true}}})
                  .ok());
  EXPECT_TRUE(placed_.nodes[1].involved());
  ASSERT_TRUE(Place({.rows = {LastTokenOf(2, 6)}}).ok());

  EXPECT_FALSE(placed_.nodes[1].involved());
}

TEST_F(RemoteRowsTest, WithHeadsSpreadEveryNodeGetsAllRows) {
  config_.partition = Partition::kHead;
  config_.heads = {{.first = 0, .count = 1}, {.first = 1, .count = 2}};
  ASSERT_TRUE(Place({.joins = {Join(1, 5, 0), Join(2, 6, 0)},
                     .rows = {LastTokenOf(1, 5)},
                     .chunks = {{.sequence = 2, .tokens = 6, .last = true}}})
                  .ok());

  for (const NodeRows& node : placed_.nodes) {
    EXPECT_EQ(node.rows.count, 1u);
    EXPECT_EQ(node.kv_rows.first, 0u);
    EXPECT_EQ(node.kv_rows.count, 6u);
  }
}

// Sequence 1 has spans on m0, m1, m0, and sees the first two and a part of the third; sequence 2
// has one on m1.
TEST_F(RemoteRowsTest, WithSpansARowGoesToEveryNodeThatItSees) {
  config_.partition = Partition::kTokenRange;
  config_.span_tokens = kSpanTokens;
  plan::StepPlan plan{.joins = {Join(1, 600, 0), Join(2, 10, 1)},
                      .rows = {LastTokenOf(1, 600), LastTokenOf(2, 10)}};
  for (const uint32_t node : {0u, 1u, 0u}) {
    plan.allocations.push_back(
        {.sequence = 1, .extent = {.first_slot = 0, .tokens = kSpanTokens}, .memory_node = node});
  }
  plan.allocations.push_back(
      {.sequence = 2, .extent = {.first_slot = 0, .tokens = kSpanTokens}, .memory_node = 1});
  ASSERT_TRUE(Place(plan).ok());

  // Rows whose own token a node has come first.
  EXPECT_THAT(placed_.nodes[0].span_rows, ElementsAre(0u));
  EXPECT_EQ(placed_.nodes[0].own_rows, 1u);
  EXPECT_EQ(placed_.nodes[0].partials, 2u);
  EXPECT_THAT(placed_.nodes[1].span_rows, ElementsAre(1u, 0u));
  EXPECT_EQ(placed_.nodes[1].own_rows, 1u);
  EXPECT_EQ(placed_.nodes[1].partials, 2u);
  EXPECT_THAT(placed_.first_partial, ElementsAre(0u, 3u, 4u));
  const auto at = [this](size_t i) {
    return std::pair(placed_.partials[i].node, placed_.partials[i].index);
  };
  EXPECT_EQ(at(0), std::pair(0u, 0u));
  EXPECT_EQ(at(1), std::pair(1u, 1u));
  EXPECT_EQ(at(2), std::pair(0u, 1u));
  EXPECT_EQ(at(3), std::pair(1u, 0u));
}

TEST_F(RemoteRowsTest, AChunkBeyondTheScratchIsRefused) {
  const absl::Status status = Place(
      {.joins = {Join(1, 5, 0)}, .chunks = {{.sequence = 1, .tokens = 5, .scratch_offset = 996}}});

  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("chunk [0, +5)"));
}

TEST_F(RemoteRowsTest, MoreTokensThanTheWindowsHoldAreRefused) {
  const absl::Status status =
      Place({.joins = {Join(2, 40, 0)}, .chunks = {{.sequence = 2, .tokens = 33}}});

  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("33 chunk tokens; at most 32"));
}

TEST_F(RemoteRowsTest, ASpanWithoutSlotsIsRefused) {
  config_.partition = Partition::kTokenRange;
  config_.span_tokens = kSpanTokens;
  const absl::Status status =
      Place({.joins = {Join(1, 600, 0)},
             .allocations = {{.sequence = 1, .extent = {.first_slot = 0, .tokens = kSpanTokens}}},
             .rows = {LastTokenOf(1, 600)}});

  EXPECT_THAT(status.message(), HasSubstr("sees 3 spans, of which slots for 1 were allocated"));
}

TEST_F(RemoteRowsTest, ASpanOnAnUnknownNodeIsRefused) {
  config_.partition = Partition::kTokenRange;
  config_.span_tokens = kSpanTokens;
  const absl::Status status =
      Place({.joins = {Join(1, 5, 0)},
             .allocations = {{.sequence = 1,
                              .extent = {.first_slot = 0, .tokens = kSpanTokens},
                              .memory_node = 2}},
             .rows = {LastTokenOf(1, 5)}});

  EXPECT_THAT(status.message(), HasSubstr("a memory node that is not there"));
}

}  // namespace
}  // namespace lamina::compute_node
