// SPDX-License-Identifier: Apache-2.0
#include "coordinator/replica_splits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Four layers of three KV heads; the last slice has the LM head.
EngineOptions Options() {
  EngineOptions options;
  options.layers.resize(4);
  options.slice_costs = {1, 1, 1, 1, 1};
  options.shard_costs = {.heads = 3, .columns = 96, .head = 1, .column = 1};
  return options;
}

// Replica r of c0 and c1 in two stages, and c2 by itself.
EngineOptions InStages() {
  EngineOptions options = Options();
  options.nodes = {{.name = "c0", .replica = "r"}, {.name = "c1", .replica = "r"}, {.name = "c2"}};
  options.replicas = {{.name = "r", .nodes = {"c0", "c1"}}};
  return options;
}

// Replica r of c0 and c1 in shards; replica q of p0 and p1 in stages, for prefill only.
EngineOptions InShards() {
  EngineOptions options = Options();
  options.nodes = {{.name = "c0", .replica = "r"},
                   {.name = "c1", .replica = "r"},
                   {.name = "p0", .prefill = true, .replica = "q"},
                   {.name = "p1", .prefill = true, .replica = "q"}};
  options.replicas = {{.name = "q", .nodes = {"p0", "p1"}},
                      {.name = "r", .nodes = {"c0", "c1"}, .shards = 2}};
  return options;
}

std::vector<const core::Member*> Pointers(const EngineOptions& options) {
  std::vector<const core::Member*> members;
  for (const core::Member& member : options.nodes) {
    members.push_back(&member);
  }
  return members;
}

TEST(ReplicaSplitsTest, WholeReplicasAreNotSplit) {
  EngineOptions options = Options();
  options.nodes = {{.name = "c0"}, {.name = "c1"}};
  ReplicaSplits splits(options);
  ASSERT_TRUE(splits.Split({{"c0", 1.0}, {"c1", 1.0}}).ok());
  EXPECT_THAT(splits.StagesOf(Pointers(options)), IsEmpty());
  EXPECT_FALSE(splits.StageOf("c0").has_value());
  EXPECT_EQ(splits.DescribeLayers("c0"), "");
  EXPECT_EQ(splits.Describe(), "");
  EXPECT_EQ(splits.shards(), 1u);
  EXPECT_EQ(splits.busiest_share(), 1);
}

TEST(ReplicaSplitsTest, AReplicaIsSplitWhenAllOfItIsThere) {
  const EngineOptions options = InStages();
  ReplicaSplits splits(options);
  ASSERT_TRUE(splits.Split({{"c1", 0.0}, {"c2", 0.0}}).ok());
  EXPECT_FALSE(splits.StageOf("c1").has_value());
  EXPECT_FALSE(splits.LayersToLoad("c1").has_value()) << "not chosen yet";
  ASSERT_TRUE(splits.Split({{"c0", 0.0}, {"c1", 0.0}, {"c2", 0.0}}).ok());
  EXPECT_EQ(splits.StageOf("c0")->layers, 2u);
  EXPECT_EQ(splits.StageOf("c1")->first_layer, 2u);
  EXPECT_EQ(splits.LayersToLoad("c1"), splits.StageOf("c1"));
  EXPECT_EQ(splits.DescribeLayers("c1"), "2-3");
  EXPECT_THAT(splits.Describe(), HasSubstr("r: c0 0-1, c1 2-3, by cost"));
  EXPECT_DOUBLE_EQ(splits.busiest_share(), 0.6);
}

TEST(ReplicaSplitsTest, APartJoinsWithItsLayersOnceTheyAreKnownAndUnderPolicyAutoAlways) {
  EngineOptions options = InStages();
  const std::map<std::string, double> all = {{"c0", 0.0}, {"c1", 0.0}, {"c2", 0.0}};
  ReplicaSplits splits(options);
  EXPECT_FALSE(splits.JoinsLoaded("c0")) << "its layers come with the first epoch";
  ASSERT_TRUE(splits.Split(all).ok());
  EXPECT_TRUE(splits.JoinsLoaded("c0"));
  EXPECT_FALSE(splits.JoinsLoaded("c2")) << "it has the whole model";

  options.replicas[0].layers = {1, 3};
  ReplicaSplits named(options);
  ASSERT_TRUE(named.Split(all).ok());
  EXPECT_FALSE(named.JoinsLoaded("c0")) << "it has loaded what the file says";
  EXPECT_FALSE(named.LayersToLoad("c0").has_value());

  options.policy_auto.emplace();
  ReplicaSplits measured(options);
  EXPECT_TRUE(measured.JoinsLoaded("c0"));
  EXPECT_FALSE(measured.JoinsLoaded("c2"));
  EXPECT_FALSE(measured.LayersToLoad("c0").has_value()) << "c1 is not there";
  ASSERT_TRUE(measured.Split(all).ok());
  EXPECT_EQ(measured.LayersToLoad("c0")->layers, 1u);
}

TEST(ReplicaSplitsTest, ASplitStaysThoughSpeedsChange) {
  const EngineOptions options = InStages();
  ReplicaSplits splits(options);
  ASSERT_TRUE(splits.Split({{"c0", 1.0}, {"c1", 3.0}}).ok());
  const std::optional<plan::Stage> stage = splits.StageOf("c1");
  EXPECT_EQ(stage->layers, 3u);
  ASSERT_TRUE(splits.Split({{"c0", 3.0}, {"c1", 1.0}}).ok());
  EXPECT_EQ(splits.StageOf("c1"), stage);
}

TEST(ReplicaSplitsTest, SpeedsThatUseHasNotBorneOutAreTold) {
  const EngineOptions options = InStages();
  ReplicaSplits splits(options);
  ASSERT_TRUE(splits.Split({{"c0", 1.0}, {"c1", 3.0}}).ok());
  EXPECT_EQ(splits.OddSpeeds({}), "") << "nothing has been seen";
  EXPECT_EQ(splits.OddSpeeds({{"c0", 1e-3}}), "") << "of c1 nothing";
  EXPECT_EQ(splits.OddSpeeds({{"c0", 3e-3}, {"c1", 1e-3}}), "") << "as measured";
  EXPECT_EQ(splits.OddSpeeds({{"c0", 1e-3}, {"c1", 1e-3}}),
            "r: c0 was taken for 0.50 of the mean speed and has 1.00, c1 was taken for 1.50 of the "
            "mean speed and has 1.00");
}

TEST(ReplicaSplitsTest, LayersAsConfiguredAreNotLoadedAnew) {
  EngineOptions options = InStages();
  options.replicas[0].layers = {1, 3};
  ReplicaSplits splits(options);
  ASSERT_TRUE(splits.Split({{"c0", 0.0}, {"c1", 0.0}}).ok());
  EXPECT_EQ(splits.StageOf("c1")->layers, 3u);
  EXPECT_FALSE(splits.LayersToLoad("c1").has_value()) << "the node has them from the start";
  EXPECT_THAT(splits.Describe(), HasSubstr("as configured"));
}

TEST(ReplicaSplitsTest, AnEpochCountsTheReplicasThatAreThere) {
  const EngineOptions options = InStages();
  ReplicaSplits splits(options);
  ASSERT_TRUE(splits.Split({{"c0", 0.0}, {"c1", 0.0}}).ok());
  const std::vector<plan::Stage> all = splits.StagesOf(Pointers(options));
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].replica, 0u);
  EXPECT_EQ(all[2], (plan::Stage{.replica = 1, .layers = 4}));
  const std::vector<plan::Stage> one = splits.StagesOf({&options.nodes[2]});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].replica, 0u);
}

TEST(ReplicaSplitsTest, ShardsHaveHeadsAndColumns) {
  const EngineOptions options = InShards();
  ReplicaSplits splits(options);
  ASSERT_TRUE(splits.Split({{"c0", 0.0}, {"c1", 0.0}}).ok());
  EXPECT_EQ(splits.shards(), 2u) << "those of the replicas that decode";
  EXPECT_EQ(splits.StageOf("c0")->shard.heads, 2u);
  EXPECT_EQ(splits.StageOf("c1")->shard.first_head, 2u);
  EXPECT_THAT(splits.DescribeLayers("c1"), HasSubstr("0-3, KV heads 2-2, MLP columns "));
  EXPECT_THAT(splits.Describe(), HasSubstr("r: c0 0-3, c1 0-3, all layers; shards of 3 KV heads"));
  EXPECT_EQ(splits.busiest_share(), 1);
}

TEST(ReplicaSplitsTest, PromptsInOtherShardsThanDecodeAreWarnedOf) {
  const EngineOptions options = InShards();
  ReplicaSplits splits(options);
  ASSERT_TRUE(splits.Split({{"c0", 0.0}, {"c1", 0.0}, {"p0", 0.0}, {"p1", 0.0}}).ok());
  EXPECT_THAT(splits.PrefillShardsWarning(Pointers(options)),
              HasSubstr("prompts run in 1 shard (p0), decode in 2"));
  EXPECT_EQ(splits.PrefillShardsWarning({&options.nodes[0], &options.nodes[1]}), "");
}

TEST(ReplicaSplitsTest, MoreStagesThanLayersAreRefused) {
  EngineOptions options = InStages();
  options.layers.resize(1);
  options.slice_costs = {1, 1};
  ReplicaSplits splits(options);
  const absl::Status refused = splits.Split({{"c0", 0.0}, {"c1", 0.0}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(splits.StageOf("c0").has_value());
}

TEST(ReplicaSplitsTest, MoreShardsThanHeadsAreRefused) {
  EngineOptions options = InShards();
  options.shard_costs.heads = 1;
  ReplicaSplits splits(options);
  const absl::Status refused = splits.Split({{"c0", 0.0}, {"c1", 0.0}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(splits.StageOf("c0").has_value());
}

}  // namespace
}  // namespace lamina::coordinator
