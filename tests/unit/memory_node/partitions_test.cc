// SPDX-License-Identifier: Apache-2.0
//
// Memory nodes over fake://: every partition, every way to cut rows, shards, and networks where
// everything is late. What comes back has the bits of attention over whole sequences.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

struct Case {
  std::string name;
  UnitClusterOptions options;
};

std::vector<Case> Cases() {
  return {
      {"Request", {}},
      {"RequestOfTwoNodes", {.memory_nodes = 2}},
      {"Head", {.memory_nodes = 2, .partition = Partition::kHead, .heads = {1, 2}}},
      {"TokenRange", {.memory_nodes = 2, .partition = Partition::kTokenRange, .span_tokens = 256}},
      {"Shards", {.shards = {1, 2}}},
      {"ShardsAndHeads",
       {.memory_nodes = 2, .partition = Partition::kHead, .heads = {2, 1}, .shards = {1, 2}}},
      {"ShardsAndTokenRange",
       {.memory_nodes = 2,
        .partition = Partition::kTokenRange,
        .span_tokens = 256,
        .shards = {2, 1}}},
      {"Replicas", {.compute_nodes = 2, .memory_nodes = 2, .mode = PipelineMode::kRotational}},
      {"RequestInInt8", {.memory_nodes = 2, .int8_tails = 16}},
      {"HeadInInt8",
       {.memory_nodes = 2, .partition = Partition::kHead, .heads = {1, 2}, .int8_tails = 16}},
      {"TokenRangeInInt8",
       {.memory_nodes = 2,
        .partition = Partition::kTokenRange,
        .span_tokens = 256,
        .int8_tails = 16}},
      {"ShardsAndTokenRangeInInt8",
       {.memory_nodes = 2,
        .partition = Partition::kTokenRange,
        .span_tokens = 256,
        .shards = {2, 1},
        .int8_tails = 16}},
  };
}

std::vector<plan::Chunking> Cuts() {
  return {{},
          {.chunks = 3},
          {.chunks = 2, .by_heads = true},
          {.query_first = true},
          {.chunks = 2, .query_first = true},
          {.chunks = 3, .by_heads = true, .query_first = true}};
}

// Prompts go on in rows, several of each in a step: with each cut those of one pass a border, at
// 64, 256 and 512 tokens. Sequence 6 begins with a chunk over three spans.
void RunRowsOfPrompts(UnitCluster& cluster, uint64_t step) {
  cluster.Run({.step = step++, .prompts = {{3, 252}, {4, 62}, {5, 507}}});
  cluster.Run({.step = step++, .prompts = {{6, 530}}});
  for (const plan::Chunking& cut : Cuts()) {
    if (!cut.query_first) {  // Tokens of full blocks may come with such rows.
      cluster.Run({.step = step++, .rows = {3, 3, 3, 4, 4, 4, 5, 5}, .chunking = cut});
    }
  }
  cluster.Run({.step = step, .rows = {6, 3, 4, 5}});
}

// Prompts of several lengths, also across blocks and spans; steps of rows cut in all ways; then
// rows and a prompt in one step.
void RunWorkload(UnitCluster& cluster) {
  cluster.Run({.step = 1, .prompts = {{0, 300}, {1, 5}}});
  cluster.Run({.step = 2, .prompts = {{2, 513}}});
  uint64_t step = 3;
  for (const plan::Chunking& cut : Cuts()) {
    cluster.Run({.step = step++, .rows = {0, 1, 2}, .chunking = cut});
  }
  for (const plan::Chunking& cut : Cuts()) {
    cluster.Run({.step = step,
                 .rows = {2, 0, 1},
                 .prompts = {{static_cast<uint32_t>(step), 7}},
                 .chunking = cut});
    ++step;
  }
  RunRowsOfPrompts(cluster, step);
}

class PartitionTest : public ::testing::TestWithParam<Case> {};

TEST_P(PartitionTest, BitsAreThoseOfWholeSequences) {
  UnitCluster cluster(GetParam().options);
  cluster.Start();

  RunWorkload(cluster);

  cluster.Stop();
}

TEST_P(PartitionTest, BitsAreTheSameWhereEverythingIsLate) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    UnitClusterOptions options = GetParam().options;
    options.network = {.seed = seed, .delay_steps_max = 6, .target_must_progress = seed == 2};
    UnitCluster cluster(options);
    cluster.Start();

    RunWorkload(cluster);

    cluster.Stop();
  }
}

INSTANTIATE_TEST_SUITE_P(All, PartitionTest, ::testing::ValuesIn(Cases()),
                         [](const auto& tested) { return tested.param.name; });

TEST(MemoryNodeTest, CountsUnitsAndBytesAsTheyAre) {
  UnitCluster cluster({});
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 20}}});

  cluster.Run({.step = 2, .rows = {0}});
  cluster.Stop();

  const AttentionDescriptor layer = cluster.config().layers[0];
  const uint64_t windows = 2 * cluster.config().layers.size();
  EXPECT_EQ(cluster.counters().units, windows);
  EXPECT_EQ(cluster.counters().bytes_received,
            windows * sizeof(plan::WindowHeader) +
                cluster.config().layers.size() * (20 * 2 * layer.kv_width() + layer.qkv_width()) *
                    sizeof(BFloat16));
  EXPECT_EQ(cluster.counters().bytes_sent,
            windows * sizeof(plan::WindowHeader) +
                cluster.config().layers.size() * layer.q_width() * sizeof(BFloat16));
  EXPECT_EQ(cluster.counters().kv_bytes_read,
            cluster.config().layers.size() * 21 * 2 * layer.kv_width() * sizeof(BFloat16));
}

}  // namespace
}  // namespace lamina::memory_node
