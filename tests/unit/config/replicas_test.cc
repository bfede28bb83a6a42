// SPDX-License-Identifier: Apache-2.0
#include "config/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// With these compute nodes.
absl::StatusOr<ClusterConfig> Parse(const std::string& compute, const std::string& rest = "") {
  return ParseClusterConfig(
      "model: m\ncompute: " + compute + "\nmemory: [{name: m0, capacity: 1GiB}]\n" + rest, "test",
      {});
}

TEST(ReplicasTest, NodesOfOneNameAreAReplicaInTheOrderOfTheirStages) {
  const auto config = Parse(
      "[{name: c0, replica: r0, stage: 1, layers: 15-29}, {name: c1}, "
      "{name: c2, replica: r0, stage: 0, layers: 0-14}, {name: c3, replica: r1}]");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::vector<ReplicaConfig> replicas = ReplicasOf(*config);
  ASSERT_EQ(replicas.size(), 3u);
  EXPECT_EQ(replicas[0].name, "r0");
  EXPECT_THAT(replicas[0].nodes, ElementsAre(2, 0));
  EXPECT_EQ(replicas[1].name, "c1");
  EXPECT_EQ(replicas[2].name, "r1");
  EXPECT_EQ(config->compute[0].layers, (LayerRange{15, 29}));
  EXPECT_TRUE(IsStage(*config, config->compute[0]));
  EXPECT_FALSE(IsStage(*config, config->compute[1]));
  EXPECT_FALSE(IsStage(*config, config->compute[3]));
}

TEST(ReplicasTest, WhatIsWrittenReadsBackAsTheSame) {
  const auto config = Parse(
      "[{name: c0, replica: r0, stage: 0, layers: 0-3}, {name: c1, replica: r0, stage: 1, "
      "layers: \"4\"}, {name: c2}]");
  ASSERT_TRUE(config.ok()) << config.status();
  const auto again = ParseClusterConfig(ToYaml(*config), "again", {});
  ASSERT_TRUE(again.ok()) << again.status();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(again->compute[i].replica, config->compute[i].replica);
    EXPECT_EQ(again->compute[i].stage, config->compute[i].stage);
    EXPECT_EQ(again->compute[i].layers, config->compute[i].layers);
  }
}

TEST(ReplicasTest, OneReplicaOfStagesRunsSequentially) {
  const auto config = Parse("[{name: c0, replica: r, stage: 0}, {name: c1, replica: r, stage: 1}]",
                            "pipeline: {mode: sequential}\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pipeline.lanes, 1u);
  const auto lanes = Parse("[{name: c0, replica: r, stage: 0}, {name: c1, replica: r, stage: 1}]");
  ASSERT_TRUE(lanes.ok()) << lanes.status();
  EXPECT_EQ(lanes->pipeline.lanes, 4u);  // Two for each stage, at most.
  EXPECT_TRUE(lanes->pipeline.lanes_auto);
}

TEST(ReplicasTest, ShardsOfAReplicaAndOfItsStages) {
  const auto config = Parse(
      "[{name: c0, replica: r0, shard: 1}, {name: c1, replica: r0, shard: 0}, "
      "{name: c2, replica: r0, shard: 2}]");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(ReplicasOf(*config).size(), 1u);
  EXPECT_THAT(ReplicasOf(*config)[0].nodes, ElementsAre(1, 0, 2));
  EXPECT_EQ(ShardsOf(*config), 3u);
  EXPECT_TRUE(IsStage(*config, config->compute[0]));
  EXPECT_EQ(config->pipeline.lanes, 2u);  // They are one place.
  const auto staged = Parse(
      "[{name: c0, replica: r, stage: 1, shard: 1, layers: 4-5}, {name: c1, replica: r, stage: 0, "
      "shard: 1, layers: 0-3}, {name: c2, replica: r, stage: 1, shard: 0, layers: 4-5}, "
      "{name: c3, replica: r, stage: 0, shard: 0, layers: 0-3}]");
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_THAT(ReplicasOf(*staged)[0].nodes, ElementsAre(3, 1, 2, 0));
  EXPECT_EQ(ShardsOf(*staged), 2u);
  EXPECT_EQ(staged->pipeline.lanes, 4u);
  const auto again = ParseClusterConfig(ToYaml(*staged), "again", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->compute[0].shard, 1u);
  const auto none = Parse("[{name: c0}]");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(ShardsOf(*none), 1u);
}

TEST(ReplicasTest, BadShardsAreRefusedByName) {
  const std::string two = "{name: c0, replica: r, shard: 0}, {name: c1, replica: r, shard: 1}";
  for (const auto& [compute, message] : {
           std::pair{std::string("[{name: c0, shard: 0}]"),
                     "compute.0.shard: node 'c0' is a shard of no replica"},
           {"[{name: c0, replica: r, shard: 0}, {name: c1, replica: r}]",
            "compute.1.shard: missing; other nodes of replica 'r' are shards"},
           {"[{name: c0, replica: r, shard: 0}, {name: c1, replica: r, shard: 2}]",
            "compute.1.shard: replica 'r' has shard 2 and no shard 1"},
           {"[{name: c0, replica: r, shard: 1}]", "has shard 1 and no shard 0"},
           {"[{name: c0, replica: r, shard: 0}, {name: c1, replica: r, shard: 0}]",
            "compute.1.shard: replica 'r' has shard 0 twice, on c0 and c1"},
           {"[" + two + ", {name: c2}]",
            "compute.2.shard: replica 'r' has 2 shards and replica 'c2' 1; give all replicas as "
            "many"},
           {"[" + two +
                ", {name: p0, replica: q, stage: 0, role: prefill}, {name: p1, replica: q, "
                "stage: 1}]",
            "compute.3.role: differs from that of p0, another node of replica 'q'"},
           {"[{name: c0, replica: r, stage: 0, shard: 0}, {name: c1, replica: r, stage: 0, shard: "
            "1},"
            " {name: c2, replica: r, stage: 1, shard: 0}]",
            "compute.2.shard: replica 'r' has 1 shards of stage 1 and 2 of its first"},
           {"[{name: c0, replica: r, stage: 0, shard: 0}, {name: c1, replica: r, stage: 1, shard: "
            "1}]",
            "compute.1.shard: replica 'r' has shard 1 and no shard 0"},
           {"[{name: c0, replica: r, stage: 0, shard: 0, layers: 0-3}, {name: c1, replica: r, "
            "stage: 0,"
            " shard: 1, layers: 0-4}]",
            "compute.1.layers: differ from those of shard 0"},
       }) {
    const auto config = Parse(compute);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << compute;
    EXPECT_THAT(config.status().message(), HasSubstr(message));
  }
}

// In any order, and of other stages and shards than the replicas that decode.
TEST(ReplicasTest, PromptsMayHaveReplicasOfTheirOwnShape) {
  const auto config = Parse(
      "[{name: p0, role: prefill}, {name: q1, role: prefill, replica: q, shard: 1}, "
      "{name: c0, replica: r, stage: 0}, {name: c1, replica: r, stage: 1}, "
      "{name: q0, role: prefill, replica: q, shard: 0}]",
      "prefill: {mode: dedicated}\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(ShardsOf(*config), 1u);
  const std::vector<ReplicaConfig> replicas = ReplicasOf(*config);
  ASSERT_EQ(replicas.size(), 3u);
  EXPECT_TRUE(IsForPrompts(*config, replicas[0]));
  EXPECT_TRUE(IsForPrompts(*config, replicas[1]));
  EXPECT_FALSE(IsForPrompts(*config, replicas[2]));
  EXPECT_EQ(config->pipeline.lanes, 4u);  // Two for each stage that decodes.
  const auto whole = Parse(
      "[{name: c0}, {name: p0, role: prefill, replica: q, stage: 0}, "
      "{name: p1, role: prefill, replica: q, stage: 1}]",
      "prefill: {mode: dedicated}\n");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->pipeline.lanes, 2u);
  EXPECT_TRUE(Parse("[{name: c0}, {name: p0, role: prefill, replica: q, stage: 0}, "
                    "{name: p1, role: prefill, replica: q, stage: 1}]",
                    "prefill: {mode: dedicated}\npipeline: {mode: sequential}\n")
                  .ok());
}

struct Bad {
  std::string compute;
  std::string message;
};

TEST(ReplicasTest, BadStagesAreRefusedByName) {
  for (
      const Bad& bad : {
          Bad{"[{name: c0, stage: 0}]", "compute.0.stage: node 'c0' is a stage of no replica"},
          Bad{"[{name: c0, layers: 0-3}]", "compute.0.layers: node 'c0' is a stage of no replica"},
          Bad{"[{name: c0, replica: r, stage: 0}, {name: c1, replica: r}]",
              "compute.1.stage: missing; replica 'r' has 2 nodes"},
          Bad{"[{name: c0, replica: r, stage: 0}, {name: c1, replica: r, stage: 2}]",
              "compute.1.stage: replica 'r' has stage 2 and no stage 1"},
          Bad{"[{name: c0, replica: r, stage: 1}]", "has stage 1 and no stage 0"},
          Bad{"[{name: c0, replica: r, stage: 0}, {name: c1, replica: r, stage: 0}]",
              "compute.1.stage: replica 'r' has stage 0 twice, on c0 and c1"},
          Bad{"[{name: c0, replica: r, stage: 0, layers: 0-3}, {name: c1, replica: r, stage: 1}]",
              "compute.1.layers: replica 'r' has layers for some of its stages only"},
          Bad{"[{name: c0, replica: r, stage: 0, layers: 0-3}, {name: c1, replica: r, stage: 1, "
              "layers: 3-5}]",
              "compute.1.layers: '3-5' overlaps the stage before it; stage 1 of replica 'r' begins "
              "at layer 4"},
          Bad{"[{name: c0, replica: r, stage: 0, layers: 0-3}, {name: c1, replica: r, stage: 1, "
              "layers: 5-6}]",
              "compute.1.layers: '5-6' leaves layers out"},
          Bad{"[{name: c0, replica: r, stage: 0, layers: 1-3}]", "leaves layers out"},
          Bad{"[{name: c0, replica: r, stage: 0, layers: 3-1}]", "not a range of layers"},
          Bad{"[{name: c0, replica: r, stage: 0, layers: all}]",
              "'all' is not a range of layers; write it like 0-14"},
          Bad{"[{name: c0, replica: r, stage: -1}]", "compute.0.stage: '-1' is not a whole number"},
      }) {
    const auto config = Parse(bad.compute);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << bad.compute;
    EXPECT_THAT(config.status().message(), HasSubstr(bad.message));
  }
}

}  // namespace
}  // namespace lamina
