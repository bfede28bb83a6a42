// SPDX-License-Identifier: Apache-2.0
//
// Prompts on compute nodes of their own: the same bits as in steps with rows, whoever comes and
// goes.

#include <functional>

#include "absl/strings/str_cat.h"
#include "kernels/attention.h"
#include "memory_node/memory_node.h"
#include "tests/integration/cluster_test_util.h"
#include "transport/fake/fake_network.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;

LocalClusterOptions Plain() {
  return {.model = SmallModel(), .slots = 4096, .sequence_tokens_max = 768};
}

double SecondsOf(LocalCluster& cluster, const std::string& node, const std::string& part) {
  for (const auto& [name, seconds] : cluster.handler(node).Counters().parts) {
    if (name == part) {
      return seconds;
    }
  }
  return 0;
}

// Chunks run on prefill nodes alone, and they run nothing else.
void ExpectRolesKept(LocalCluster& cluster) {
  for (const coordinator::NodeReport& node : cluster.engine().GetStatus().nodes) {
    if (!node.member.is_memory) {
      EXPECT_EQ(SecondsOf(cluster, node.member.name, "chunks") > 0, node.member.prefill)
          << node.member.name;
      if (node.member.prefill && node.member.replica.empty()) {
        EXPECT_EQ(SecondsOf(cluster, node.member.name, "wait_replica"), 0);
      }
    }
  }
}

TEST(PrefillTest, DedicatedIsAsInlineOverPartitionsReplicasAndChunks) {
  const std::unique_ptr<LocalCluster> plain = MakeCluster(Plain());
  ASSERT_NE(plain, nullptr);
  const std::vector<GenerateResult> wanted = plain->GenerateMany(MixedRequests());
  for (const auto& [partition, replicas, prefill_nodes, lanes, chunk] :
       {std::tuple{Partition::kRequest, 1u, 1u, 1u, 512u},
        {Partition::kRequest, 1u, 1u, 2u, 16u},
        {Partition::kRequest, 2u, 2u, 3u, 64u},
        {Partition::kHead, 1u, 1u, 2u, 64u},
        {Partition::kHead, 2u, 1u, 3u, 16u},
        {Partition::kTokenRange, 1u, 1u, 1u, 64u},
        {Partition::kTokenRange, 2u, 3u, 3u, 16u}}) {
    SCOPED_TRACE(absl::StrCat("partition ", static_cast<int>(partition), ", ", replicas,
                              " replicas, ", prefill_nodes, " prefill nodes, ", lanes,
                              " lanes, chunks of ", chunk));
    LocalClusterOptions options = Plain();
    options.partition = partition;
    options.compute_nodes = replicas;
    options.prefill_nodes = prefill_nodes;
    options.memory_nodes = 2;
    options.lanes = lanes;
    options.chunk_tokens = chunk;
    options.memory_plan_delay = Micros(200);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), wanted);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    ExpectRolesKept(*cluster);
    EXPECT_THAT(cluster->engine().GetStatus().prefill, ::testing::StartsWith("dedicated: p0"));
  }
}

struct Shape {
  uint32_t stages = 1;
  uint32_t shards = 1;
};

std::string Describe(const Shape& decode, const Shape& prefill) {
  return absl::StrCat("decode of ", decode.stages, " stages of ", decode.shards,
                      " shards, prompts of ", prefill.stages, " of ", prefill.shards);
}

// Three KV heads: two shards are uneven, and three cut them elsewhere.
RandomModelSpec ThreeHeads() {
  RandomModelSpec model = SmallModel();
  model.layers = 3;
  model.query_heads = 6;
  model.kv_heads = 3;
  return model;
}

LocalClusterOptions Shaped(const Shape& decode, const Shape& prefill, uint32_t prefill_replicas) {
  LocalClusterOptions options = Plain();
  options.model = ThreeHeads();
  options.stages = decode.stages;
  options.shards = decode.shards;
  options.compute_nodes = decode.stages * decode.shards;
  options.prefill_stages = prefill.stages;
  options.prefill_shards = prefill.shards;
  options.prefill_nodes = prefill.stages * prefill.shards * prefill_replicas;
  options.memory_nodes = 2;
  options.lanes = 2;
  return options;
}

// Sums have the order of the shards, wherever a token is worked on.
TEST(PrefillTest, AnyStagesAndTheSameShardsAreAsInline) {
  for (const auto& [decode, prefill, replicas, partition, chunk] :
       {std::tuple{Shape{2, 1}, Shape{1, 1}, 1u, Partition::kRequest, 64u},
        {Shape{1, 1}, Shape{2, 1}, 1u, Partition::kTokenRange, 16u},
        {Shape{3, 1}, Shape{2, 1}, 2u, Partition::kHead, 64u},
        {Shape{1, 2}, Shape{1, 2}, 1u, Partition::kRequest, 64u},
        {Shape{2, 2}, Shape{1, 2}, 2u, Partition::kHead, 16u},
        {Shape{1, 3}, Shape{2, 3}, 1u, Partition::kTokenRange, 64u}}) {
    SCOPED_TRACE(absl::StrCat(Describe(decode, prefill), ", ", replicas, " replicas of these, ",
                              "partition ", static_cast<int>(partition)));
    LocalClusterOptions options = Shaped(decode, {}, 0);
    const std::vector<GenerateResult> wanted = MakeCluster(options)->GenerateMany(MixedRequests());
    options = Shaped(decode, prefill, replicas);
    options.partition = partition;
    options.chunk_tokens = chunk;
    options.memory_plan_delay = Micros(200);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), wanted);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    ExpectRolesKept(*cluster);
    const coordinator::EngineStatus status = cluster->engine().GetStatus();
    EXPECT_EQ(status.epoch, 1u);  // Nothing went wrong and was done again.
    EXPECT_TRUE(status.warnings.empty());
  }
}

// A whole model's K and V, or that of other shards, is close to what decode would have made of it:
// scores, which are prefill only, are to the bit those of a cluster of such replicas, and text is
// within the tolerance of local_cluster_shards_test.cc of what one node would say.
TEST(PrefillTest, OtherShardsAreCloseAndAWarningSaysSo) {
  constexpr float kTolerance = 0.02f;
  const std::vector<TokenId> scored = RandomPrompt(300, 4);
  LocalClusterOptions one = Shaped({}, {}, 0);
  const std::unique_ptr<LocalCluster> whole = MakeCluster(one);
  for (const auto& [decode, prefill, partition] :
       {std::tuple{Shape{1, 2}, Shape{1, 1}, Partition::kRequest},
        {Shape{2, 2}, Shape{1, 1}, Partition::kHead},
        {Shape{1, 3}, Shape{1, 1}, Partition::kTokenRange},
        {Shape{1, 1}, Shape{1, 2}, Partition::kHead},
        {Shape{1, 2}, Shape{2, 3}, Partition::kRequest},
        {Shape{1, 3}, Shape{1, 2}, Partition::kHead}}) {
    SCOPED_TRACE(
        absl::StrCat(Describe(decode, prefill), ", partition ", static_cast<int>(partition)));
    LocalClusterOptions options = Shaped(decode, prefill, 1);
    options.partition = partition;
    options.chunk_tokens = 64;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    const std::vector<TokenId> prompt = RandomPrompt(270, 8);

    const GenerateResult result = cluster->Generate(Greedy(prompt, 30));

    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.choices[0].tokens.size(), 30u);
    std::vector<TokenId> text = prompt;
    text.insert(text.end(), result.choices[0].tokens.begin(), result.choices[0].tokens.end());
    const GenerateResult expected =
        whole->Generate({.prompt = text, .sampling = {.logprobs = 1}, .score = true});
    for (size_t i = 0; i < 30; ++i) {
      const size_t at = prompt.size() - 1 + i;
      EXPECT_NEAR(result.choices[0].logprobs[i], expected.scores[at], kTolerance) << i;
      EXPECT_LE(expected.ranks[at].top[0].logprob - expected.scores[at], 2 * kTolerance) << i;
    }
    const std::unique_ptr<LocalCluster> as_prompts = MakeCluster(Shaped(prefill, {}, 0));
    EXPECT_EQ(Bits(cluster->Score(scored).scores), Bits(as_prompts->Score(scored).scores));
    const coordinator::EngineStatus status = cluster->engine().GetStatus();
    ASSERT_EQ(status.warnings.size(), 1u);
    EXPECT_THAT(status.warnings[0], ::testing::HasSubstr("bits may differ: prompts run in "));
    EXPECT_EQ(status.epoch, 1u);
    ExpectRolesKept(*cluster);
  }
}

// All nodes of a replica for prompts take part or none; prompts go on elsewhere.
TEST(PrefillTest, AReplicaForPromptsTakesPartWholeOrNotAtAll) {
  LocalClusterOptions options = Shaped({1, 2}, {2, 2}, 1);
  options.prefix_cache = false;  // Else whoever comes again passes by it.
  options.chunk_tokens = 16;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(cluster->engine().GetStatus().prefill, "dedicated: p0+p1+p2+p3");
  const std::vector<GenerateSpec> specs = LongRequests(8);
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  requests[0]->WaitForTokens(2);
  cluster->Detach("p2");
  std::vector<GenerateResult> results;
  for (const std::shared_ptr<LocalRequest>& request : requests) {
    results.push_back(request->Wait());
  }
  ExpectSame(results, undisturbed);
  EXPECT_EQ(cluster->engine().GetStatus().prefill, "inline, for no prefill node is there");
  cluster->Attach("p2");
  EXPECT_TRUE(cluster->WaitForState("serving").ok());
  ExpectSame(cluster->GenerateMany(specs), undisturbed);
  EXPECT_EQ(cluster->engine().GetStatus().prefill, "dedicated: p0+p1+p2+p3");
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// What comes from the coordinator is not believed.
TEST(PrefillTest, NodesRefuseRolesThatDoNotFitTheReplicas) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Shaped({1, 2}, {2, 1}, 1));
  ASSERT_NE(cluster, nullptr);
  const plan::EpochConfig good = cluster->link("m0").config();
  EXPECT_EQ(good.prefill_lanes, 2u);  // One on each stage.
  ThreadPool pool({.threads = 1});
  memory_node::MemoryNode node(
      {.name = "m0", .make_device = kernels::CpuKvDevices(kernels::CpuAttention(), pool)}, pool);
  EXPECT_TRUE(node.Configure(good).ok());
  std::vector<plan::EpochConfig> bad(6, good);
  bad[0].prefill_nodes = 4;
  bad[1].prefill_lanes = 4;
  bad[2].prefill_lanes = 0;
  bad[3].prefill_nodes = 1;  // One replica has a node that decodes and one that does not.
  bad[4].prefill_nodes = 3;
  bad[5].stages[3].shard = bad[5].stages[1].shard;
  for (const plan::EpochConfig& config : bad) {
    EXPECT_EQ(node.Configure(config).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(PrefillTest, ParallelResidualsAndF32AreAsInlineToo) {
  LocalClusterOptions options = Plain();
  options.model = SmallParallelModel();
  options.compute_type = DType::kF32;
  const std::vector<GenerateResult> wanted = MakeCluster(options)->GenerateMany(MixedRequests());
  options.prefill_nodes = 1;
  options.memory_nodes = 2;
  options.lanes = 2;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(MixedRequests()), wanted);
}

TEST(PrefillTest, AnUnrulyTransportChangesNothing) {
  const std::vector<GenerateResult> wanted = MakeCluster(Plain())->GenerateMany(MixedRequests());
  const auto network = transport::FakeNetwork::Named(
      "unruly_prefill",
      {.seed = 13, .delay_steps_max = 12, .in_flight_max = 4, .put_bytes_max = 1000});
  LocalClusterOptions options = Plain();
  options.transports = {"fake://unruly_prefill"};
  options.prefill_nodes = 2;
  options.memory_nodes = 2;
  options.lanes = 2;
  options.chunk_tokens = 64;
  options.memory_plan_delay = Micros(200);
  for (const uint32_t stages : {1u, 2u}) {
    options.prefill_stages = stages;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(MixedRequests()), wanted);
  }
}

// Forks take their first token from their parent's last chunk, each with its own sampling.
TEST(PrefillTest, SeveralChoicesAndScoresAreAsInline) {
  LocalClusterOptions options = Plain();
  options.lanes = 2;
  const std::unique_ptr<LocalCluster> plain = MakeCluster(options);
  options.prefill_nodes = 1;
  options.chunk_tokens = 32;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(plain, nullptr);
  ASSERT_NE(cluster, nullptr);
  GenerateSpec spec = Sampled(RandomPrompt(100, 3), 30, 7);
  spec.choices = 4;
  const GenerateResult wanted = plain->Generate(spec);
  const GenerateResult found = cluster->Generate(spec);
  ASSERT_TRUE(found.status.ok()) << found.status;
  ASSERT_EQ(found.choices.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    ExpectSameChoice(found.choices[i], wanted.choices[i]);
  }
  EXPECT_EQ(Bits(cluster->Score(RandomPrompt(200, 4)).scores),
            Bits(plain->Score(RandomPrompt(200, 4)).scores));
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

TEST(PrefillTest, PreemptedRequestsComeAgainThroughPrefillNodes) {
  LocalClusterOptions options{
      .model = SmallModel(), .lanes = 2, .chunk_tokens = 32, .prefix_cache = false};
  const std::vector<GenerateSpec> specs = LongRequests(8);
  const std::vector<GenerateResult> wanted = MakeCluster(options)->GenerateMany(specs);
  options.prefill_nodes = 1;
  options.slots = 600;  // Half of what they grow to.
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  ExpectSame(cluster->GenerateMany(specs), wanted);
  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
  ExpectRolesKept(*cluster);
}

// Nobody's request ends with a prefill node, in prefill or not; without any, prompts share steps
// with rows.
TEST(PrefillTest, RequestsGoOnWhenPrefillNodesLeaveAndComeBack) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster({.model = SmallModel(),
                                                             .prefill_nodes = 2,
                                                             .memory_nodes = 2,
                                                             .lanes = 2,
                                                             .chunk_tokens = 16,
                                                             .prefix_cache = false});
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateSpec> specs = LongRequests(10);
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs);
  uint64_t epoch = cluster->engine().GetStatus().epoch;
  const auto run = [&](const std::function<void()>& meanwhile) {
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (const GenerateSpec& spec : specs) {
      requests.push_back(cluster->Start(spec));
    }
    requests[0]->WaitForTokens(2);  // Others are still in prefill.
    meanwhile();
    std::vector<GenerateResult> results;
    for (const std::shared_ptr<LocalRequest>& request : requests) {
      results.push_back(request->Wait());
    }
    ExpectSame(results, undisturbed);
    EXPECT_TRUE(cluster->WaitForEpoch(++epoch).ok());
  };
  const auto prefill = [&] { return cluster->engine().GetStatus().prefill; };
  run([&] { cluster->Detach("p1"); });
  EXPECT_EQ(prefill(), "dedicated: p0");
  run([&] { cluster->Detach("p0"); });
  EXPECT_EQ(prefill(), "inline, for no prefill node is there");
  EXPECT_FALSE(cluster->engine().GetStatus().warnings.empty());
  run([&] { cluster->Attach("p0"); });
  EXPECT_EQ(prefill(), "dedicated: p0");
  run([&] { cluster->Attach("p1"); });
  EXPECT_EQ(prefill(), "dedicated: p0, p1");
  EXPECT_TRUE(cluster->engine().GetStatus().warnings.empty());
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Prefill nodes alone decode nothing.
TEST(PrefillTest, WithoutANodeThatDecodesTheClusterWaits) {
  const std::unique_ptr<LocalCluster> cluster =
      MakeCluster({.model = SmallModel(), .prefill_nodes = 1});
  ASSERT_NE(cluster, nullptr);
  auto request = cluster->Start(Greedy(RandomPrompt(50, 1), 150));
  request->WaitForTokens(1);
  cluster->Detach("c0");
  const GenerateResult ended = request->Wait();
  if (ended.status.ok()) {
    EXPECT_EQ(ended.choices[0].tokens.size(), 150u);  // It was faster.
  } else {
    EXPECT_EQ(ended.status.code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(cluster->Generate(Greedy({1}, 2)).status.code(), absl::StatusCode::kUnavailable);
  cluster->Attach("c0");
  EXPECT_TRUE(cluster->WaitForState("serving").ok());
  EXPECT_TRUE(cluster->Generate(Greedy({1}, 2)).status.ok());
}

TEST(PrefillTest, CancelledPromptsFreeTheirSlots) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(
      {.model = SmallModel(), .prefill_nodes = 1, .chunk_tokens = 8, .sequence_tokens_max = 768});
  ASSERT_NE(cluster, nullptr);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (uint64_t i = 0; i < 6; ++i) {
    requests.push_back(cluster->Start(Greedy(RandomPrompt(500, i), 150)));
  }
  for (const auto& request : requests) {
    cluster->Cancel(*request);
  }
  for (const auto& request : requests) {
    EXPECT_EQ(request->Wait().status.code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(20, 9), 5)).status.ok());
}

}  // namespace
}  // namespace lamina::test_support
