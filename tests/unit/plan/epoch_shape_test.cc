// SPDX-License-Identifier: Apache-2.0
#include "plan/epoch_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::plan {
namespace {

using ::testing::HasSubstr;

// Two whole replicas, two memory nodes, two layers of three KV heads.
EpochConfig Config() {
  return {.epoch = 9,
          .lanes = 3,
          .rows_max = 4,
          .chunk_tokens_max = 8,
          .sequence_tokens_max = 1000,
          .layers = {{.query_heads = 9, .kv_heads = 3, .head_dim = 64},
                     {.query_heads = 9, .kv_heads = 3, .head_dim = 64}},
          .compute_nodes = {"c0", "c1"},
          .memory_nodes = {"m0", "m1"},
          .slots = {100, 200}};
}

EpochConfig ByHead() {
  EpochConfig config = Config();
  config.partition = Partition::kHead;
  config.heads = {{.first = 0, .count = 1}, {.first = 1, .count = 2}};
  return config;
}

EpochConfig BySpan() {
  EpochConfig config = Config();
  config.partition = Partition::kTokenRange;
  config.span_tokens = 256;
  return config;
}

// c0 and c1 are the stages of one replica.
EpochConfig InStages() {
  EpochConfig config = Config();
  config.stages = {{.replica = 0, .first_layer = 0, .layers = 1},
                   {.replica = 0, .first_layer = 1, .layers = 1}};
  return config;
}

EpochConfig Local() {
  EpochConfig config = Config();
  config.attention_paths = {AttentionPath::kLocal};
  config.compute_nodes = {"c0"};
  config.memory_nodes = {"c0"};
  config.slots = {100};
  return config;
}

void ExpectRefused(const EpochConfig& config, absl::string_view words) {
  const absl::Status status = CheckEpoch(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(words)));
}

TEST(CheckEpochTest, WholeReplicasStagesEachPartitionAndPathLocalAreTaken) {
  for (const EpochConfig& config : {Config(), ByHead(), BySpan(), InStages(), Local()}) {
    EXPECT_TRUE(CheckEpoch(config).ok()) << CheckEpoch(config);
  }
}

TEST(CheckEpochTest, PrefillNodesThatLeaveNoneToDecodeAreRefused) {
  EpochConfig config = Config();
  config.prefill_nodes = 2;
  config.prefill_lanes = 2;
  ExpectRefused(config, "2 prefill nodes of 2 compute nodes");
}

TEST(CheckEpochTest, PrefillLanesThatLeaveNoneToDecodeAreRefused) {
  EpochConfig config = Config();
  config.prefill_nodes = 1;
  config.prefill_lanes = 3;
  ExpectRefused(config, "3 prefill lanes of 3");
}

TEST(CheckEpochTest, PrefillLanesThatAreNotAsManyForEachReplicaAreRefused) {
  EpochConfig config = Config();
  config.prefill_nodes = 1;
  config.prefill_lanes = 2;
  ExpectRefused(config, "not as many for each replica");
}

TEST(CheckEpochTest, StagesForSomeComputeNodesOnlyAreRefused) {
  EpochConfig config = InStages();
  config.compute_nodes.push_back("c2");
  ExpectRefused(config, "stages for 2 of 3 compute nodes");
}

TEST(CheckEpochTest, StagesThatLeaveOutALayerAreRefused) {
  EpochConfig config = InStages();
  config.stages[1].layers = 0;
  EXPECT_EQ(CheckEpoch(config).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckEpochTest, AReplicaOfNodesForPromptsAndOthersIsRefused) {
  EpochConfig config = InStages();
  config.compute_nodes.push_back("c2");
  config.stages = {{.replica = 0, .first_layer = 0, .layers = 1},
                   {.replica = 0, .first_layer = 1, .layers = 1},
                   {.replica = 0, .first_layer = 0, .layers = 2}};
  config.prefill_nodes = 1;
  config.prefill_lanes = 1;
  EXPECT_EQ(CheckEpoch(config).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckEpochTest, ShardsThatShareAHeadAreRefused) {
  EpochConfig config = InStages();
  for (uint32_t i = 0; i < 2; ++i) {
    config.stages[i] = {
        .replica = 0, .layers = 2, .shard = {.index = i, .count = 2, .first_head = i, .heads = 2}};
  }
  EXPECT_EQ(CheckEpoch(config).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckEpochTest, SlotsForSomeMemoryNodesOnlyAreRefused) {
  EpochConfig config = Config();
  config.slots.pop_back();
  ExpectRefused(config, "gives slots to 1 of 2 memory nodes");
}

TEST(CheckEpochTest, HeadsOrSpansOfAnotherPartitionAreRefused) {
  EpochConfig config = ByHead();
  config.partition = Partition::kRequest;
  ExpectRefused(config, "those of another one");
  config = Config();
  config.partition = Partition::kHead;
  ExpectRefused(config, "those of another one");
  config = BySpan();
  config.partition = Partition::kRequest;
  ExpectRefused(config, "spans of 256 tokens");
  config = Config();
  config.partition = Partition::kTokenRange;
  ExpectRefused(config, "those of another one");
}

TEST(CheckEpochTest, APartitionThatIsNotChosenYetOrNotKnownIsRefused) {
  for (const uint32_t value : {uint32_t{static_cast<uint8_t>(Partition::kAuto)}, 77u}) {
    EpochConfig config = Config();
    config.partition = static_cast<Partition>(value);
    ExpectRefused(config, "partition ");
  }
}

TEST(CheckEpochTest, HeadsThatAreNotTheLayersAreRefused) {
  EpochConfig config = ByHead();
  config.heads[1].count = 1;
  ExpectRefused(config, "gives 2 KV heads to 2 of 2 memory nodes");
  config = ByHead();
  config.heads = {{.first = 0, .count = 3}};
  ExpectRefused(config, "to 1 of 2 memory nodes");
}

TEST(CheckEpochTest, NoAttentionPathIsRefused) {
  EpochConfig config = Config();
  config.attention_paths = {};
  ExpectRefused(config, "attention paths 0");
}

TEST(CheckEpochTest, AnAttentionPathOfALaterVersionIsRefused) {
  EpochConfig config = Config();
  config.attention_paths = AttentionPaths::FromBits(1u << 7 | 1u);
  ExpectRefused(config, "attention paths 129; this version knows 3");
}

TEST(CheckEpochTest, PathLocalWithKvElsewhereIsRefused) {
  EpochConfig config = Config();
  config.attention_paths = {AttentionPath::kLocal};
  ExpectRefused(config, "does not have KV on the nodes that attend");
  config = Local();
  config.attention_paths = {AttentionPath::kRemote};
  ExpectRefused(config, "does not have KV on the nodes that attend");
}

TEST(HoldsTest, ASequenceLivesOnOneNodeOrHasPartsOnEach) {
  EXPECT_TRUE(Holds(Config(), 1, 1));
  EXPECT_FALSE(Holds(Config(), 0, 1));
  EXPECT_TRUE(Holds(ByHead(), 0, 1));
  EXPECT_TRUE(Holds(BySpan(), 0, 1));
  EXPECT_FALSE(IsSpread(Config()));
  EXPECT_TRUE(IsSpread(ByHead()));
  EXPECT_TRUE(IsSpread(BySpan()));
}

TEST(WindowShapeOfTest, SpansAreThoseOfALongestSequence) {
  EXPECT_EQ(WindowShapeOf(Config()).spans_max, 0u);
  EXPECT_EQ(WindowShapeOf(BySpan()).spans_max, 4u);
}

}  // namespace
}  // namespace lamina::plan
