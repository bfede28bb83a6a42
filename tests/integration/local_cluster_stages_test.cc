// SPDX-License-Identifier: Apache-2.0
//
// Replicas that several compute nodes hold in stages: the same bits as one node, only the weights
// of the own layers, and all of a replica's nodes or none.

#include "absl/strings/str_cat.h"
#include "kernels/attention.h"
#include "memory_node/memory_node.h"
#include "tests/integration/cluster_test_util.h"
#include "transport/fake/fake_network.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using ::testing::HasSubstr;

RandomModelSpec FiveLayers(RandomModelSpec model) {
  model.layers = 5;
  return model;
}

// Prompts of one chunk and of several, and across a block of attention.
std::vector<GenerateSpec> MixedRequests() {
  std::vector<GenerateSpec> specs;
  for (const size_t tokens : {1u, 2u, 16u, 33u, 100u, 255u, 257u, 300u}) {
    specs.push_back(tokens % 2 == 0 ? Sampled(RandomPrompt(tokens, tokens), 20, tokens)
                                    : Greedy(RandomPrompt(tokens, tokens), 14));
  }
  return specs;
}

struct Base {
  RandomModelSpec model;
  DType compute_type = DType::kBF16;
};

class StagesTest : public ::testing::TestWithParam<Base> {
 protected:
  LocalClusterOptions OneNode() const {
    return {.model = GetParam().model,
            .compute_type = GetParam().compute_type,
            .sequence_tokens_max = 768};
  }
  // `replicas` of `stages` nodes each.
  LocalClusterOptions Staged(uint32_t stages, uint32_t replicas = 1) const {
    LocalClusterOptions options = OneNode();
    options.compute_nodes = stages * replicas;
    options.stages = stages;
    return options;
  }
  std::vector<GenerateResult> OnOneNode(const std::vector<GenerateSpec>& specs) const {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(OneNode());
    return cluster->GenerateMany(specs);
  }
  static void ExpectTheSame(const LocalClusterOptions& options,
                            const std::vector<GenerateSpec>& specs,
                            const std::vector<GenerateResult>& expected) {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(specs), expected);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    for (uint32_t node = 0; node < options.compute_nodes; ++node) {  // All of them took part.
      if (options.lanes >= options.compute_nodes / options.stages) {
        EXPECT_GT(cluster->handler(absl::StrCat("c", node)).Counters().units, 0u) << node;
      }
    }
  }
};

TEST_P(StagesTest, OneNodeIsAsTwoStagesAndThree) {
  const std::vector<GenerateResult> expected = OnOneNode(MixedRequests());
  for (const auto& [mode, stages, lanes, chunk] :
       {std::tuple{PipelineMode::kSequential, 2u, 1u, 512u},
        {PipelineMode::kRotational, 2u, 3u, 16u},
        {PipelineMode::kFixed, 3u, 2u, 64u},
        {PipelineMode::kRotational, 5u, 4u, 64u}}) {
    SCOPED_TRACE(absl::StrCat(stages, " stages, ", lanes, " lanes, chunks of ", chunk));
    LocalClusterOptions options = Staged(stages);
    options.mode = mode;
    options.lanes = lanes;
    options.chunk_tokens = chunk;
    options.memory_nodes = 2;
    ExpectTheSame(options, MixedRequests(), expected);
  }
}

// Lanes move from replica to replica, and from stage to stage of each.
TEST_P(StagesTest, TwoReplicasOfTwoStagesChangeNothing) {
  const std::vector<GenerateResult> expected = OnOneNode(MixedRequests());
  for (const PipelineMode mode : {PipelineMode::kRotational, PipelineMode::kFixed}) {
    SCOPED_TRACE(static_cast<int>(mode));
    LocalClusterOptions options = Staged(2, 2);
    options.mode = mode;
    options.lanes = 3;
    options.chunk_tokens = 64;
    options.memory_plan_delay = Micros(200);
    ExpectTheSame(options, MixedRequests(), expected);
  }
}

TEST_P(StagesTest, EveryPartitionAndRowsInChunksChangeNothing) {
  const std::vector<GenerateResult> expected = OnOneNode(MixedRequests());
  for (const auto& [partition, chunks, query_first] :
       {std::tuple{Partition::kHead, 1u, QueryFirst::kNever},
        {Partition::kTokenRange, 1u, QueryFirst::kNever},
        {Partition::kRequest, 3u, QueryFirst::kAlways},
        {Partition::kHead, 2u, QueryFirst::kAlways},
        {Partition::kTokenRange, 2u, QueryFirst::kAlways}}) {
    SCOPED_TRACE(absl::StrCat("partition ", static_cast<int>(partition), ", ", chunks, " chunks"));
    LocalClusterOptions options = Staged(2);
    options.partition = partition;
    options.sub_batches = {.chunks = chunks, .query_first = query_first};
    options.lanes = 2;
    options.memory_nodes = 2;
    options.chunk_tokens = 64;
    ExpectTheSame(options, MixedRequests(), expected);
  }
}

TEST_P(StagesTest, AnUnrulyTransportChangesNothing) {
  const auto network = transport::FakeNetwork::Named(
      "unruly_stages",
      {.seed = 13, .delay_steps_max = 12, .in_flight_max = 4, .put_bytes_max = 1000});
  LocalClusterOptions options = Staged(2, 2);
  options.transports = {"fake://unruly_stages"};
  options.lanes = 3;
  options.memory_nodes = 2;
  options.chunk_tokens = 64;
  options.memory_plan_delay = Micros(200);
  ExpectTheSame(options, MixedRequests(), OnOneNode(MixedRequests()));
}

TEST_P(StagesTest, PreemptionForksAndScoresChangeNothing) {
  std::vector<GenerateSpec> specs;
  for (uint32_t i = 0; i < 8; ++i) {
    specs.push_back(Sampled(RandomPrompt(10 + 15 * i, i), 60, i));
  }
  const std::vector<TokenId> text = RandomPrompt(200, 9);
  GenerateSpec forked = Sampled(RandomPrompt(70, 5), 30, 50);
  forked.choices = 3;
  const std::unique_ptr<LocalCluster> one = MakeCluster(OneNode());
  LocalClusterOptions options = Staged(3);
  options.slots = 800;
  options.lanes = 2;
  options.chunk_tokens = 32;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  ExpectSame(cluster->GenerateMany(specs), one->GenerateMany(specs));
  const GenerateResult choices = cluster->Generate(forked);
  const GenerateResult expected = one->Generate(forked);
  ASSERT_EQ(choices.choices.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ExpectSameChoice(choices.choices[i], expected.choices[i]);
  }
  EXPECT_EQ(Bits(cluster->Score(text).scores), Bits(one->Score(text).scores));
  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, StagesTest,
                         ::testing::Values(Base{FiveLayers(SmallModel()), DType::kBF16},
                                           Base{FiveLayers(SmallParallelModel()), DType::kF32}),
                         [](const ::testing::TestParamInfo<Base>& test) {
                           return test.param.model.model_type;
                         });

// Lanes overtake each other on the last stage, whose LM head is several chunks of the vocabulary
// and one lane's at a time.
TEST(StagesTest, LanesThatOvertakeEachOtherMeetAtTheHead) {
  LocalClusterOptions options{.model = FiveLayers(SmallModel()), .sequence_tokens_max = 1024};
  options.model.vocabulary = 5 * 2048;
  std::vector<GenerateSpec> specs = {Greedy(RandomPrompt(600, 1), 120)};
  for (uint32_t i = 0; i < 9; ++i) {
    specs.push_back(Greedy(RandomPrompt(2 + i, i), 120));
  }
  const std::vector<GenerateResult> expected = MakeCluster(options)->GenerateMany(specs);
  const auto network = transport::FakeNetwork::Named(
      "overtaking", {.seed = 17, .delay_steps_max = 20, .in_flight_max = 8, .put_bytes_max = 1000});
  options.compute_nodes = 2;
  options.stages = 2;
  options.lanes = 3;
  for (const char* transport : {"shm://", "fake://overtaking"}) {
    SCOPED_TRACE(transport);
    options.transports = {transport};
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(specs), expected);
    EXPECT_EQ(cluster->engine().GetStatus().epoch, 1u);  // Nobody waited for ever.
  }
}

TEST(StagesTest, AStageHoldsTheWeightsOfItsLayersAlone) {
  LocalClusterOptions options{.model = FiveLayers(SmallModel())};
  const std::unique_ptr<LocalCluster> one = MakeCluster(options);
  options.compute_nodes = 3;
  options.stages = 3;
  options.stage_layers = {1, 3, 1};
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  const uint64_t whole = one->WeightBytes("c0");
  uint64_t sum = 0;
  for (const char* name : {"c0", "c1", "c2"}) {
    EXPECT_LT(cluster->WeightBytes(name), whole) << name;
    sum += cluster->WeightBytes(name);
  }
  EXPECT_EQ(sum, whole);  // Nothing twice: the embedding is the first one's, the head the last's.
  EXPECT_GT(cluster->WeightBytes("c1"), cluster->WeightBytes("c2"));
  const coordinator::EngineStatus status = cluster->engine().GetStatus();
  EXPECT_EQ(status.stages, "r0: c0 0-0, c1 1-3, c2 4-4, as configured");
  EXPECT_EQ(status.nodes[1].layers, "1-3");
  EXPECT_EQ(status.nodes[1].member.replica, "r0");
}

// One replica's second stage is three times as fast as its first; the other replica's are alike.
// Both splits are found for the layers and the LM head, and stay over epochs.
TEST(StagesTest, AFasterNodeGetsMoreLayers) {
  RandomModelSpec model = SmallModel();
  model.layers = 8;
  LocalClusterOptions options{.model = model, .chunk_tokens = 32};
  const std::unique_ptr<LocalCluster> one = MakeCluster(options);
  options.compute_nodes = 4;
  options.stages = 2;
  options.lanes = 4;
  options.dense_speeds = {1e9, 3e9, 2e9, 2.1e9};
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(4);
  const std::vector<GenerateResult> expected = one->GenerateMany(specs);

  ExpectSame(cluster->GenerateMany(specs), expected);
  const coordinator::EngineStatus status = cluster->engine().GetStatus();
  EXPECT_EQ(status.stages,
            "r0: c0 0-1, c1 2-7, by cost and measured speed: c0 0.50, c1 1.50; "
            "r1: c2 0-4, c3 5-7, by cost and measured speed: c2 1.00, c3 1.00");
  EXPECT_GT(cluster->WeightBytes("c1"), cluster->WeightBytes("c3"));
  cluster->Detach("c3");
  EXPECT_TRUE(cluster->WaitForEpoch(status.epoch + 1).ok());
  EXPECT_EQ(cluster->engine().GetStatus().stages, status.stages);
  ExpectSame(cluster->GenerateMany(specs), expected);
}

// A node's end of the stream, for the coordinator to talk to.
struct SilentPort final : coordinator::NodePort {
  void LoadLayers(const plan::Stage& stage, bool) override { layers = stage; }
  void Configure(const plan::EpochConfig&) override { ++configured; }
  void Connect(const plan::EpochPeers&) override {}
  void Leave(const std::string&) override {}
  void Dismiss() override {}
  void SendPlan(const coordinator::OutgoingPlan&) override {}
  void StartTrace(Nanos) override {}
  void CollectTrace(uint64_t) override {}
  void PingClock() override {}
  void Refuse(const absl::Status& why) override { refused = std::string(why.message()); }
  void End() override {}

  plan::Stage layers;
  int configured = 0;
  std::string refused;
};

// Nobody waits for it: the epoch that it takes part in begins when its layers are there.
TEST(StagesTest, AStageThatComesBackLoadsBeforeItTakesPart) {
  const std::unique_ptr<LocalCluster> cluster =
      MakeCluster({.model = FiveLayers(SmallModel()), .compute_nodes = 4, .stages = 2, .lanes = 2});
  ASSERT_NE(cluster, nullptr);
  coordinator::Engine& engine = cluster->engine();
  const coordinator::EngineStatus before = engine.GetStatus();
  const coordinator::NodeHello hello = before.nodes[3].hello;
  ASSERT_EQ(hello.identity.name, "c3");
  cluster->Detach("c3");
  // One more epoch has begun where a peer's fault was heard before that the node is gone.
  ASSERT_TRUE(cluster->WaitForEpoch(before.epoch + 1).ok());
  const uint64_t epoch = engine.GetStatus().epoch;
  const auto port = std::make_shared<SilentPort>();

  engine.NodeJoined(hello, port);

  EXPECT_EQ(engine.GetStatus().epoch, epoch);  // Others go on.
  EXPECT_EQ(absl::StrCat(port->layers.first_layer, "-",
                         port->layers.first_layer + port->layers.layers - 1),
            before.nodes[3].layers);
  EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(5, 1), 20)).status.ok());
  const auto second = std::make_shared<SilentPort>();
  engine.NodeJoined(hello, second);  // While the first one loads.
  engine.GetStatus();
  EXPECT_THAT(second->refused, HasSubstr("already part of this cluster"));
  engine.NodeLoaded({.name = "c3", .port = second.get()}, plan::PolicyTimes());  // It was refused.
  EXPECT_THAT(engine.GetStatus().state, HasSubstr("without c3"));
  engine.NodeLoaded({.name = "c3", .port = port.get()}, absl::ResourceExhaustedError("no memory"));
  EXPECT_THAT(engine.GetStatus().state, HasSubstr("without c3"));
  EXPECT_EQ(port->refused, "no memory");
  EXPECT_EQ(port->configured, 0);
  cluster->Attach("c3");
  EXPECT_TRUE(cluster->WaitForState("serving").ok());
  EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(5, 1), 20)).status.ok());
}

// What comes from the coordinator is not believed.
TEST(StagesTest, NodesRefuseStagesThatDoNotHaveEveryLayerOnce) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(
      {.model = FiveLayers(SmallModel()), .compute_nodes = 2, .stages = 2, .stage_layers = {2, 3}});
  ASSERT_NE(cluster, nullptr);
  const plan::EpochConfig good = cluster->link("m0").config();
  ThreadPool pool({.threads = 1});
  memory_node::MemoryNode node(
      {.name = "m0", .make_device = kernels::CpuKvDevices(kernels::CpuAttention(), pool)}, pool);
  EXPECT_TRUE(node.Configure(good).ok());
  std::vector<plan::EpochConfig> bad(4, good);
  bad[0].stages.pop_back();
  bad[1].stages[1].first_layer = 1;
  bad[2].stages[1].layers = 7;
  bad[3].stages[1].replica = 1000;
  for (const plan::EpochConfig& config : bad) {
    EXPECT_EQ(node.Configure(config).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// What is left of a replica waits; the other one goes on, and recomputes what ran there.
TEST(StagesTest, AReplicaTakesPartWholeOrNotAtAll) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster({.model = FiveLayers(SmallModel()),
                                                             .compute_nodes = 4,
                                                             .stages = 2,
                                                             .memory_nodes = 2,
                                                             .lanes = 3,
                                                             .chunk_tokens = 32});
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(6);
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
  for (const char* name : {"c1", "c2"}) {
    SCOPED_TRACE(name);
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (const GenerateSpec& spec : specs) {
      requests.push_back(cluster->Start(spec));
    }
    for (const std::shared_ptr<LocalRequest>& request : requests) {
      request->WaitForTokens(2);
    }
    const uint64_t epoch = cluster->engine().GetStatus().epoch;
    cluster->Detach(name);
    std::vector<GenerateResult> results;
    for (const std::shared_ptr<LocalRequest>& request : requests) {
      results.push_back(request->Wait());
    }
    ExpectSame(results, undisturbed);
    EXPECT_TRUE(cluster->WaitForEpoch(epoch + 1).ok());
    EXPECT_THAT(cluster->engine().GetStatus().state, HasSubstr("waits for the other nodes"));
    cluster->Attach(name);
    EXPECT_TRUE(cluster->WaitForState("serving").ok());
  }
  ExpectSame(cluster->GenerateMany(specs), undisturbed);
}

TEST(StagesTest, WithoutAWholeReplicaRequestsEndAtOnce) {
  const std::unique_ptr<LocalCluster> cluster =
      MakeCluster({.model = FiveLayers(SmallModel()), .compute_nodes = 2, .stages = 2, .lanes = 2});
  ASSERT_NE(cluster, nullptr);
  const auto request = cluster->Start(Greedy(RandomPrompt(5, 1), 240));
  request->WaitForTokens(2);
  cluster->Detach("c1");

  EXPECT_EQ(request->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(cluster->engine().GetStatus().state, HasSubstr("waiting for c1"));
  cluster->Attach("c1");
  EXPECT_TRUE(cluster->WaitForState("serving").ok());
  EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(5, 1), 20)).status.ok());
}

}  // namespace
}  // namespace lamina::test_support
