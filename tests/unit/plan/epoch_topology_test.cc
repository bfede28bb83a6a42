// SPDX-License-Identifier: Apache-2.0
#include "plan/epoch_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "plan/epoch_shape.h"

namespace lamina::plan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

// c0 and c1 are the shards of one replica, of one KV head and of two.
EpochConfig InShards() {
  EpochConfig config = Config();
  config.stages = {{.layers = 2, .shard = {.index = 0, .count = 2, .heads = 1, .columns = 64}},
                   {.layers = 2,
                    .shard = {.index = 1,
                              .count = 2,
                              .first_head = 1,
                              .heads = 2,
                              .first_column = 64,
                              .columns = 64}}};
  return config;
}

// A whole replica p0 for prefill only, behind c0 and c1, with the last lane.
EpochConfig WithPrefill() {
  EpochConfig config = Config();
  config.compute_nodes.push_back("p0");
  config.prefill_nodes = 1;
  config.prefill_lanes = 1;
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

// Replicas c0 and c1 keep K and V of their own lanes.
EpochConfig LocalReplicas() {
  EpochConfig config = Config();
  config.attention_paths = {AttentionPath::kLocal};
  config.memory_nodes = config.compute_nodes;
  return config;
}

// Two replicas of two nodes: c0 and c1 are stages of one layer, c2 and c3 shards of one head and
// two.
EpochConfig LocalParts() {
  EpochConfig config = LocalReplicas();
  config.compute_nodes = {"c0", "c1", "c2", "c3"};
  config.memory_nodes = config.compute_nodes;
  config.stages = InStages().stages;
  for (EpochConfig parts = InShards(); const Stage& shard : parts.stages) {
    config.stages.push_back(shard);
    config.stages.back().replica = 1;
  }
  config.slots = {100, 100, 200, 200};
  return config;
}

EpochTopology Topology(const EpochConfig& config) { return *EpochTopology::Create(config); }

void ExpectRefused(const EpochConfig& config, absl::string_view words) {
  const absl::Status status = EpochTopology::Create(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(words)));
}

TEST(EpochTopologyCreateTest, WholeReplicasStagesEachPartitionAndPathLocalAreTaken) {
  for (const EpochConfig& config :
       {Config(), ByHead(), BySpan(), InStages(), InShards(), WithPrefill(), Local()}) {
    const auto topology = EpochTopology::Create(config);
    ASSERT_TRUE(topology.ok()) << topology.status();
    EXPECT_EQ(topology->config(), config);
  }
}

TEST(EpochTopologyCreateTest, PrefillNodesThatLeaveNoneToDecodeAreRefused) {
  EpochConfig config = Config();
  config.prefill_nodes = 2;
  config.prefill_lanes = 2;
  ExpectRefused(config, "2 prefill nodes of 2 compute nodes");
}

TEST(EpochTopologyCreateTest, PrefillLanesThatLeaveNoneToDecodeAreRefused) {
  EpochConfig config = Config();
  config.prefill_nodes = 1;
  config.prefill_lanes = 3;
  ExpectRefused(config, "3 prefill lanes of 3");
}

TEST(EpochTopologyCreateTest, PrefillLanesThatAreNotAsManyForEachReplicaAreRefused) {
  EpochConfig config = Config();
  config.prefill_nodes = 1;
  config.prefill_lanes = 2;
  ExpectRefused(config, "not as many for each replica");
}

TEST(EpochTopologyCreateTest, StagesForSomeComputeNodesOnlyAreRefused) {
  EpochConfig config = InStages();
  config.compute_nodes.push_back("c2");
  ExpectRefused(config, "stages for 2 of 3 compute nodes");
}

TEST(EpochTopologyCreateTest, StagesThatLeaveOutALayerAreRefused) {
  EpochConfig config = InStages();
  config.stages[1].layers = 0;
  ExpectRefused(config, "stages of replica 0 do not have each of 2 layers once");
}

TEST(EpochTopologyCreateTest, AReplicaOfNodesForPromptsAndOthersIsRefused) {
  EpochConfig config = InStages();
  config.prefill_nodes = 1;
  config.prefill_lanes = 1;
  ExpectRefused(config, "nodes for prompts and others in replica 0");
}

TEST(EpochTopologyCreateTest, ShardsThatShareAHeadAreRefused) {
  EpochConfig config = InStages();
  for (uint32_t i = 0; i < 2; ++i) {
    config.stages[i] = {
        .replica = 0, .layers = 2, .shard = {.index = i, .count = 2, .first_head = i, .heads = 2}};
  }
  ExpectRefused(config, "2 shards of the model do not have each of 3 KV heads once");
}

TEST(EpochTopologyCreateTest, ShardsWithWholeReplicasAreRefused) {
  EpochConfig config = InShards();
  for (Stage& stage : config.stages) {
    ++stage.replica;
  }
  config.compute_nodes.insert(config.compute_nodes.begin(), "w");
  config.stages.insert(config.stages.begin(), Stage{.replica = 0, .layers = 2});
  ExpectRefused(config, "some compute nodes are shards and others are not");
}

TEST(EpochTopologyCreateTest, SlotsForSomeMemoryNodesOnlyAreRefused) {
  EpochConfig config = Config();
  config.slots.pop_back();
  ExpectRefused(config, "gives slots to 1 of 2 memory nodes");
}

TEST(EpochTopologyCreateTest, HeadsOrSpansOfAnotherPartitionAreRefused) {
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

TEST(EpochTopologyCreateTest, APartitionThatIsNotChosenYetOrNotKnownIsRefused) {
  for (const uint32_t value : {uint32_t{static_cast<uint8_t>(Partition::kAuto)}, 77u}) {
    EpochConfig config = Config();
    config.partition = static_cast<Partition>(value);
    ExpectRefused(config, "partition ");
  }
}

TEST(EpochTopologyCreateTest, HeadsThatAreNotTheLayersAreRefused) {
  EpochConfig config = ByHead();
  config.heads[1].count = 1;
  ExpectRefused(config, "gives 2 KV heads to 2 of 2 memory nodes");
  config = ByHead();
  config.heads = {{.first = 0, .count = 3}};
  ExpectRefused(config, "to 1 of 2 memory nodes");
}

TEST(EpochTopologyCreateTest, SlotsOfTwoFormsAreThoseOfRowsThatAttendAtMemoryNodes) {
  EpochConfig config = Config();
  config.stages.clear();
  config.prefill_nodes = 0;
  config.prefill_lanes = 0;
  config.attention_paths.Add(AttentionPath::kRemoteInt8);
  config.int8_tails = 4;
  ExpectRefused(config, "has INT8 slots of 0 memory nodes");
  config.int8_slots.assign(config.memory_nodes.size(), 10);
  EXPECT_TRUE(EpochTopology::Create(config).ok()) << EpochTopology::Create(config).status();
  EXPECT_EQ(config.KvFormOf(AttentionPath::kRemote), KvForm::kBF16);
  EXPECT_EQ(config.KvFormOf(AttentionPath::kRemoteInt8), KvForm::kInt8);
  EpochConfig bad = config;
  bad.int8_tails = 0;
  ExpectRefused(bad, "which this version does not serve");
  bad = config;
  bad.attention_paths = {AttentionPath::kRemote};
  ExpectRefused(bad, "has INT8 slots of");
  bad = config;
  bad.attention.decode = AttentionArithmetic::kPairs;
  ExpectRefused(bad, "which this version does not serve");
  EpochConfig whole = Config();
  whole.int8_tails = 4;
  EXPECT_EQ(whole.KvFormOf(AttentionPath::kRemote), KvForm::kInt8);
}

TEST(EpochTopologyCreateTest, SlotsOfHybridNextToOthersAreItsOwn) {
  EpochConfig config = Config();
  config.compute_nodes.resize(1);
  config.lanes = 1;
  config.fetch_bytes = 64 << 20;
  config.activation_width = 40;
  config.activation_share = 512;
  config.attention_paths = {AttentionPath::kHybrid};
  EXPECT_TRUE(EpochTopology::Create(config).ok()) << EpochTopology::Create(config).status();
  EpochConfig bad = config;
  bad.attention_paths = {AttentionPath::kFetch};
  ExpectRefused(bad, "512 of 1024 hold activations");
  bad = config;
  bad.hybrid_slots = {10, 20};
  ExpectRefused(bad, "has slots of path hybrid on 2 memory nodes");

  config.attention_paths = {AttentionPath::kRemote, AttentionPath::kFetch, AttentionPath::kHybrid};
  ExpectRefused(config, "has slots of path hybrid on 0 memory nodes");
  config.hybrid_slots = {10, 20};
  EXPECT_TRUE(EpochTopology::Create(config).ok()) << EpochTopology::Create(config).status();
  bad = config;
  bad.partition = Partition::kTokenRange;
  bad.span_tokens = 256;
  ExpectRefused(bad, "which this version does not serve");
  bad = config;
  bad.activation_share = 0;
  bad.attention_paths.Add(AttentionPath::kRecompute);
  ExpectRefused(bad, "which this version does not serve");
}

TEST(EpochTopologyCreateTest, SpansOfInt8AreWholeBlocksAndAreAttendedWhereTheyLie) {
  EpochConfig config = BySpan();
  config.int8_tails = 4;
  EXPECT_TRUE(EpochTopology::Create(config).ok()) << EpochTopology::Create(config).status();
  config.span_tokens = 96;
  ExpectRefused(config, "has INT8 KV with a path, a partition");
  config = BySpan();
  config.compute_nodes = {"c0"};
  config.attention_paths = {AttentionPath::kFetch};
  config.fetch_bytes = 64 << 20;
  EXPECT_TRUE(EpochTopology::Create(config).ok()) << EpochTopology::Create(config).status();
  config.int8_tails = 4;
  ExpectRefused(config, "has INT8 KV with a path, a partition");
}

TEST(EpochTopologyCreateTest, NoAttentionPathIsRefused) {
  EpochConfig config = Config();
  config.attention_paths = {};
  ExpectRefused(config, "attention paths 0");
}

TEST(EpochTopologyCreateTest, AnAttentionPathOfALaterVersionIsRefused) {
  EpochConfig config = Config();
  config.attention_paths = AttentionPaths::FromBits(1u << 8 | 1u);
  ExpectRefused(config, "attention paths 257; this version knows 255");
}

TEST(EpochTopologyCreateTest, PathLocalWithKvElsewhereIsRefused) {
  EpochConfig config = Config();
  config.attention_paths = {AttentionPath::kLocal};
  ExpectRefused(config, "does not have KV on the nodes that attend");
  config = Local();
  config.attention_paths = {AttentionPath::kRemote};
  ExpectRefused(config, "does not have KV on the nodes that attend");
}

TEST(EpochTopologyCreateTest, PathLocalKeepsWholeSequencesInTheSameSlotsOfEachReplica) {
  EpochConfig config = LocalReplicas();
  config.stages = InStages().stages;
  ExpectRefused(config, "unlike slots in one replica");
  config.slots = {100, 100};
  EXPECT_TRUE(EpochTopology::Create(config).ok());
  config.partition = Partition::kTokenRange;
  config.span_tokens = 256;
  ExpectRefused(config, "with a partition");
  config = LocalReplicas();
  config.prefill_nodes = 1;
  config.prefill_lanes = 1;
  ExpectRefused(config, "with nodes for prompts");
}

TEST(EpochTopologyTest, KnowsItsNodesByName) {
  const EpochTopology topology = Topology(WithPrefill());
  EXPECT_EQ(topology.FindCompute("p0")->index(), 2u);
  EXPECT_EQ(topology.FindMemory("m1")->index(), 1u);
  EXPECT_EQ(topology.FindMemory("m1")->slots(), 200u);
}

TEST(EpochTopologyTest, ANodeThatIsNotNamedIsRefused) {
  const EpochTopology topology = Topology(Config());
  for (const absl::Status& status :
       {topology.FindCompute("m0").status(), topology.FindMemory("c0").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("epoch 9 does not name"));
  }
}

TEST(EpochTopologyTest, ViewsOutliveTheTopologyThatMadeThemWhileACopyLives) {
  std::optional<EpochTopology> first = Topology(Config());
  const ComputeNodeView view = first->compute(1);
  const EpochTopology copy = *first;
  first.reset();
  EXPECT_EQ(view.name(), "c1");
}

TEST(EpochTopologyTest, SaysWhetherReplicasAreSplitAndSequencesSpread) {
  EXPECT_EQ(Topology(Config()).form(), ReplicaForm::kWhole);
  EXPECT_EQ(Topology(InStages()).form(), ReplicaForm::kSplit);
  EXPECT_EQ(Topology(InStages()).shards(), 1u);
  EXPECT_EQ(Topology(InShards()).shards(), 2u);
  EXPECT_FALSE(Topology(Config()).is_spread());
  EXPECT_TRUE(Topology(ByHead()).is_spread());
  EXPECT_TRUE(Topology(BySpan()).is_spread());
}

TEST(EpochTopologyTest, LanesOfPromptsAreTheLast) {
  const EpochTopology topology = Topology(WithPrefill());
  EXPECT_EQ(topology.decode_nodes(), 2u);
  EXPECT_EQ(topology.prefill_lanes(), (PrefillLanes{.replicas = 1, .each = 1}));
  EXPECT_FALSE(topology.Schedule().IsPrefillLane(1));
  EXPECT_TRUE(topology.Schedule().IsPrefillLane(2));
  EXPECT_EQ(Topology(Config()).prefill_lanes().count(), 0u);
}

TEST(EpochTopologyTest, SpansOfWindowsAreThoseOfALongestSequence) {
  EXPECT_EQ(Topology(Config()).window_shape().spans_max, 0u);
  EXPECT_EQ(Topology(BySpan()).window_shape().spans_max, 4u);
  EpochConfig fetching = BySpan();  // No node answers with partials.
  fetching.compute_nodes.resize(1);
  fetching.attention_paths = {AttentionPath::kFetch};
  fetching.fetch_bytes = 64 << 20;
  EXPECT_EQ(Topology(fetching).window_shape().spans_max, 0u);
}

TEST(EpochTopologyTest, WindowsCarryContextsOfChunksWhereReplicasAreSplit) {
  EXPECT_EQ(Topology(Config()).window_shape().context_chunk_rows, 0u);
  EXPECT_EQ(Topology(InStages()).window_shape().context_chunk_rows, 8u);
  EXPECT_EQ(Topology(InShards()).window_shape().shards, 2u);
  EXPECT_EQ(Topology(InStages()).window_shape().lanes, 3u);
}

TEST(EpochTopologyTest, TheNarrowestRowsBetweenTwoNodesAreKnown) {
  EXPECT_EQ(Topology(Config()).window_heads_min(), 3u);
  EXPECT_EQ(Topology(ByHead()).window_heads_min(), 1u);
  EXPECT_EQ(Topology(InShards()).window_heads_min(), 1u);
}

TEST(ComputeNodeViewTest, RunsAWholeReplicaOrAStageOrAShard) {
  const EpochTopology whole = Topology(Config());
  EXPECT_EQ(whole.compute(1).stage(), (Stage{.replica = 1, .layers = 2}));
  EXPECT_TRUE(whole.compute(1).has_all_layers());
  const EpochTopology stages = Topology(InStages());
  EXPECT_EQ(stages.compute(1).stage().first_layer, 1u);
  EXPECT_FALSE(stages.compute(1).has_all_layers());
  const EpochTopology shards = Topology(InShards());
  EXPECT_EQ(shards.compute(1).stage().shard.first_head, 1u);
  EXPECT_TRUE(shards.compute(1).has_all_layers());
}

TEST(ComputeNodeViewTest, RunsLanesOfItsOwnKind) {
  const EpochTopology topology = Topology(WithPrefill());
  EXPECT_THAT(topology.compute(0).lanes(), ElementsAre(0, 1));
  EXPECT_FALSE(topology.compute(1).is_for_prompts());
  EXPECT_THAT(topology.compute(2).lanes(), ElementsAre(2));
  EXPECT_TRUE(topology.compute(2).is_for_prompts());
}

TEST(ComputeNodeViewTest, AsksMemoryNodesForTheHeadsThatBothHave) {
  EpochConfig config = InShards();
  config.partition = Partition::kHead;
  config.heads = {{.first = 0, .count = 2}, {.first = 2, .count = 1}};
  const EpochTopology topology = Topology(config);
  const AttentionDescriptor& layer = config.layers[0];
  EXPECT_EQ(topology.compute(0).HeadsAt(layer, 0), (HeadRange{.first = 0, .count = 1}));
  EXPECT_EQ(topology.compute(0).HeadsAt(layer, 1), HeadRange());
  EXPECT_EQ(topology.compute(1).HeadsAt(layer, 0), (HeadRange{.first = 1, .count = 1}));
  EXPECT_EQ(topology.memory(1).HeadsFor(layer, 1), (HeadRange{.first = 2, .count = 1}));
}

TEST(ComputeNodeViewTest, WritesToAllMemoryNodesAndToTheOtherComputeNodes) {
  const EpochTopology topology = Topology(WithPrefill());
  EXPECT_EQ(topology.compute(1).opens(), (EpochNodes{.compute = {0, 2}, .memory = {0, 1}}));
  EXPECT_EQ(topology.compute(1).opened_by(), topology.compute(1).opens());
}

TEST(ComputeNodeViewTest, WritesToNobodyOnPathLocal) {
  EXPECT_EQ(Topology(Local()).compute(0).opens(), EpochNodes());
  EXPECT_EQ(Topology(Local()).memory(0).opens(), EpochNodes());
  EXPECT_THAT(Topology(Local()).memory(0).lanes(), IsEmpty());
}

TEST(ComputeNodeViewTest, WritesToTheNodesOfItsOwnReplicaOnPathLocal) {
  EXPECT_EQ(Topology(LocalReplicas()).compute(1).opens(), EpochNodes());
  EXPECT_THAT(Topology(LocalReplicas()).compute(1).lanes(), ElementsAre(1));
  EpochConfig config = LocalParts();
  config.stages[2].shard = config.stages[3].shard = {};  // Views check nothing.
  EXPECT_EQ(EpochView(config).compute(0).opens(), (EpochNodes{.compute = {1}}));
  EXPECT_EQ(EpochView(config).compute(2).opens(), (EpochNodes{.compute = {3}}));
}

// Both ends of every region agree, whatever the configuration.
TEST(EpochTopologyTest, WhoOpensARegionIsOpenedByItsOwner) {
  for (const EpochConfig& config : {Config(), ByHead(), BySpan(), InStages(), InShards(),
                                    WithPrefill(), Local(), LocalReplicas()}) {
    const EpochTopology topology = Topology(config);
    for (uint32_t i = 0; i < topology.compute_nodes(); ++i) {
      for (const uint32_t peer : topology.compute(i).opens().compute) {
        EXPECT_THAT(topology.compute(peer).opened_by().compute, Contains(i));
      }
      for (const uint32_t peer : topology.compute(i).opens().memory) {
        EXPECT_THAT(topology.memory(peer).opened_by().compute, Contains(i));
        EXPECT_THAT(topology.memory(peer).opens().compute, Contains(i));
      }
    }
  }
}

TEST(ComputeNodeViewTest, MayWaitOnADeviceForLanesThatStayOnIt) {
  EpochConfig config = WithPrefill();
  config.compute_waits = true;
  EXPECT_FALSE(Topology(config).compute(0).may_wait_on_device()) << "lanes rotate";
  config.mode = PipelineMode::kFixed;
  EXPECT_TRUE(Topology(config).compute(0).may_wait_on_device());
  EXPECT_TRUE(Topology(config).compute(0).keeps(0));
  EXPECT_FALSE(Topology(config).compute(0).keeps(1));
  EXPECT_FALSE(Topology(config).compute(2).may_wait_on_device()) << "prefill only";
  config.compute_waits = false;
  EXPECT_FALSE(Topology(config).compute(0).may_wait_on_device());
  config = ByHead();
  config.mode = PipelineMode::kFixed;
  config.compute_waits = true;
  EXPECT_FALSE(Topology(config).compute(0).may_wait_on_device()) << "heads of several nodes";
  config = InShards();
  config.mode = PipelineMode::kFixed;
  config.compute_waits = true;
  EXPECT_FALSE(Topology(config).compute(0).may_wait_on_device()) << "shards";
}

TEST(MemoryNodeViewTest, HoldsWholeSequencesOrAPartOfEach) {
  EXPECT_TRUE(Topology(Config()).memory(1).Holds(1));
  EXPECT_FALSE(Topology(Config()).memory(0).Holds(1));
  EXPECT_TRUE(Topology(ByHead()).memory(0).Holds(1));
  EXPECT_TRUE(Topology(BySpan()).memory(0).Holds(1));
}

TEST(MemoryNodeViewTest, OnPathLocalItHoldsItsPartOfTheSequencesOfItsReplica) {
  const EpochConfig config = LocalParts();
  const EpochView view(config);
  for (uint32_t node = 0; node < 4; ++node) {
    EXPECT_EQ(view.memory(node).holder(), node / 2);
    EXPECT_EQ(view.memory(node).Holds(0), node < 2);
    EXPECT_EQ(view.memory(node).Holds(1), node >= 2);
  }
  EXPECT_EQ(view.memory(1).layers(), std::vector<AttentionDescriptor>({config.layers[1]}));
  ASSERT_EQ(view.memory(3).layers().size(), 2u);
  EXPECT_EQ(view.memory(3).layers()[0].kv_heads, 2u);
  EXPECT_EQ(view.memory(3).HeadsOf(config.layers[0]), (HeadRange{.first = 1, .count = 2}));
}

TEST(MemoryNodeViewTest, AttendsOverTheHeadsThatItHolds) {
  const EpochTopology topology = Topology(ByHead());
  const std::vector<AttentionDescriptor> layers = topology.memory(1).layers();
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].kv_heads, 2u);
  EXPECT_EQ(layers[0].query_heads, 6u);
  EXPECT_EQ(Topology(Config()).memory(1).layers(), Config().layers);
}

TEST(MemoryNodeViewTest, WritesToAllComputeNodesAndTakesRowsOfAllLanes) {
  const EpochTopology topology = Topology(WithPrefill());
  EXPECT_EQ(topology.memory(1).opens(), (EpochNodes{.compute = {0, 1, 2}}));
  EXPECT_THAT(topology.memory(1).lanes(), ElementsAre(0, 1, 2));
}

TEST(MemoryNodeViewTest, MayWaitOnADeviceForRowsThatComeWhole) {
  EpochConfig config = ByHead();
  config.memory_waits = true;
  EXPECT_TRUE(Topology(config).memory(0).may_wait_on_device());
  config.memory_waits = false;
  EXPECT_FALSE(Topology(config).memory(0).may_wait_on_device());
  config = BySpan();
  config.memory_waits = true;
  EXPECT_FALSE(Topology(config).memory(0).may_wait_on_device());
  config = InShards();
  config.memory_waits = true;
  EXPECT_FALSE(Topology(config).memory(0).may_wait_on_device());
}

TEST(TransportUriTest, HasTheHostsOwnOptionsOfVerbs) {
  const std::string own = "verbs://mlx5_0?gid=3&peers=local";
  EpochConfig config = Config();
  config.transport = "verbs://";
  EXPECT_EQ(TransportUri(config, own), own);
  config.transport = "throttle(latency=20us)+verbs://";
  EXPECT_EQ(TransportUri(config, own), "throttle(latency=20us)+verbs://mlx5_0?gid=3&peers=local");
  config.transport = "throttle(latency=20us)+ucx://?peers=local";
  EXPECT_EQ(TransportUri(config, own), "throttle(latency=20us)+ucx://?peers=local");
}

}  // namespace
}  // namespace lamina::plan
