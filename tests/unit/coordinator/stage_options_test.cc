// SPDX-License-Identifier: Apache-2.0
#include "coordinator/stage_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "model/model.h"
#include "tests/support/random_model.h"

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StageOptionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = ::testing::TempDir() + "/stage_options_" + std::to_string(getpid());
    std::filesystem::create_directories(folder);
    ASSERT_TRUE(test_support::WriteRandomModel({.model_type = "llama",
                                                .layers = 4,
                                                .width = 64,
                                                .ffn_width = 96,
                                                .query_heads = 4,
                                                .kv_heads = 2,
                                                .head_dim = 16,
                                                .vocabulary = 100},
                                               folder)
                    .ok());
    auto model = model::OpenModel(folder);
    ASSERT_TRUE(model.ok()) << model.status();
    graph_ = model->graph;
    std::filesystem::remove_all(folder);
  }

  absl::Status Settle(const std::string& compute) {
    options_ = {};
    const auto config = ParseClusterConfig(
        "model: m\ncompute: " + compute + "\nmemory: [{name: m0, capacity: 1GiB}]\n", "test", {});
    EXPECT_TRUE(config.ok()) << config.status();
    options_.layers.resize(4);
    for (const ComputeNodeConfig& node : config->compute) {
      options_.nodes.push_back({.name = node.name});
    }
    return SettleStages(*config, graph_, options_);
  }

  model::Graph graph_;
  EngineOptions options_;
};

TEST_F(StageOptionsTest, StagesOfTheFileBecomeReplicas) {
  ASSERT_TRUE(Settle("[{name: c0, replica: r, stage: 0, layers: 0-2}, {name: c1}, "
                     "{name: c2, replica: r, stage: 1, layers: 3-3}]")
                  .ok());
  ASSERT_EQ(options_.replicas.size(), 1u);
  EXPECT_THAT(options_.replicas[0].nodes, ElementsAre("c0", "c2"));
  EXPECT_THAT(options_.replicas[0].layers, ElementsAre(3, 1));
  EXPECT_EQ(options_.nodes[0].replica, "r");
  EXPECT_EQ(options_.nodes[1].replica, "");
  EXPECT_EQ(options_.nodes[2].replica, "r");
}

// Layer k's q, k and v are in slice k, its output projection and MLP in slice k + 1.
TEST_F(StageOptionsTest, SlicesCostTheirWeights) {
  ASSERT_TRUE(Settle("[{name: c0, replica: r, stage: 0}, {name: c1, replica: r, stage: 1}]").ok());
  const double qkv = 64 * (64 + 2 * 32);
  const double rest = 64 * 64 + 64 * 192 + 96 * 64;
  EXPECT_THAT(options_.slice_costs,
              ElementsAre(qkv, rest + qkv, rest + qkv, rest + qkv, rest + 64 * 100));
}

TEST_F(StageOptionsTest, ShardsOfTheFileBecomeReplicas) {
  ASSERT_TRUE(Settle("[{name: c0, replica: r, shard: 1}, {name: c1, replica: r, shard: 0}]").ok());
  ASSERT_EQ(options_.replicas.size(), 1u);
  EXPECT_THAT(options_.replicas[0].nodes, ElementsAre("c1", "c0"));
  EXPECT_EQ(options_.replicas[0].shards, 2u);
  EXPECT_EQ(options_.shard_costs.heads, 2u);
  EXPECT_EQ(options_.shard_costs.columns, 96u);
  // One KV head in 4 layers has two query heads, k and v, and the output's columns.
  EXPECT_EQ(options_.shard_costs.head, 4 * 64 * (2 * 16 + 2 * 16 + 2 * 16));
  EXPECT_EQ(options_.shard_costs.column, 4 * 3 * 64);
  const absl::Status refused = Settle(
      "[{name: a, replica: r, shard: 0}, {name: b, replica: r, shard: 1}, "
      "{name: c, replica: r, shard: 2}]");
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("this model has 2 KV heads"));
}

TEST_F(StageOptionsTest, WithoutStagesThereIsNothingToSettle) {
  ASSERT_TRUE(Settle("[{name: c0}, {name: c1}]").ok());
  EXPECT_TRUE(options_.replicas.empty());
  EXPECT_TRUE(options_.slice_costs.empty());
}

TEST_F(StageOptionsTest, LayersThatTheModelDoesNotHaveAreRefused) {
  for (const char* last : {"3-4", "3-2000"}) {
    const absl::Status refused =
        Settle(std::string("[{name: c0, replica: r, stage: 0, layers: 0-2}, ") +
               "{name: c1, replica: r, stage: 1, layers: " + last + "}]");
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("must end with layer 3, the last of the model"));
  }
  EXPECT_THAT(Settle("[{name: c0, replica: r, stage: 0, layers: 0-1}, "
                     "{name: c1, replica: r, stage: 1, layers: \"2\"}]")
                  .message(),
              HasSubstr("compute.1.layers: '2-2' is the last stage of replica 'r'"));
  std::string five = "[";
  for (int i = 0; i < 5; ++i) {
    five += "{name: c" + std::to_string(i) + ", replica: r, stage: " + std::to_string(i) + "},";
  }
  EXPECT_THAT(Settle(five + "]").message(), HasSubstr("has 5 stages; the model has 4 layers"));
}

}  // namespace
}  // namespace lamina::coordinator
