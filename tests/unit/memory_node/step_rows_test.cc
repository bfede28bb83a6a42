// SPDX-License-Identifier: Apache-2.0

#include "memory_node/step_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace lamina::memory_node {
namespace {

using plan::AttentionPath;
using ::testing::HasSubstr;

// Sequences 1, 2, ... of these paths, each with a row at position 3.
absl::Status Collect(const std::vector<AttentionPath>& paths, Lane& lane) {
  const plan::EpochConfig config{
      .lanes = 1,
      .rows_max = 8,
      .chunk_tokens_max = 8,
      .sequence_tokens_max = 64,
      .layers = {{.query_heads = 2, .kv_heads = 1, .head_dim = 32}},
      .compute_nodes = {"c0"},
      .attention_paths = {AttentionPath::kRemote, AttentionPath::kFetch, AttentionPath::kSparse},
      .fetch_bytes = 1 << 20,
      .sparse_ratio = 0.5,
      .memory_nodes = {"m0"},
      .slots = {64}};
  plan::StepPlan plan{.step = 5};
  for (uint32_t i = 0; i < paths.size(); ++i) {
    plan.joins.push_back({.id = i + 1, .path = paths[i]});
    plan.allocations.push_back(
        {.sequence = i + 1, .extent = {.first_slot = 4 * i, .tokens = 4}, .memory_node = 0});
    plan.rows.push_back({.sequence = i + 1, .position = 3});
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
  for (const AttentionPath path : {AttentionPath::kFetch, AttentionPath::kSparse}) {
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

}  // namespace
}  // namespace lamina::memory_node
