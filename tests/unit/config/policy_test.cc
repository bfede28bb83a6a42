// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/units.h"
#include "config/cluster_config.h"
#include "config/memory_cores.h"
#include "config/replicas.h"

namespace lamina {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kLocal[] =
    "model: m\npolicy: local\ncompute: [{name: c0, cores: \"0-1\", capacity: 2GiB}]\n";

absl::StatusOr<ClusterConfig> Parse(const std::string& text,
                                    const std::vector<std::string>& overrides = {}) {
  return ParseClusterConfig(text, "test", overrides);
}

TEST(PolicyTest, LocalNeedsNoMemoryNodesAndHasOneLane) {
  const auto config = Parse(kLocal);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->policy, kPolicyLocal);
  EXPECT_EQ(config->compute[0].capacity_bytes, GiB(2));
  EXPECT_TRUE(config->memory.empty());
  EXPECT_EQ(config->pipeline.lanes, 1u);
  EXPECT_TRUE(Parse(std::string(kLocal) + "memory: []\npipeline: {lanes: auto}\n").ok());
  EXPECT_TRUE(Parse(std::string(kLocal) + "pipeline: {mode: sequential}\npartition: auto\n").ok());
}

constexpr char kReplicas[] =
    "model: m\npolicy: local\ncompute: [{name: c0, capacity: 2GiB}, {name: c1, capacity: 1GiB}]\n";
constexpr char kStages[] =
    "model: m\npolicy: local\ncompute: [{name: c0, capacity: 2GiB, replica: r, stage: 0}, "
    "{name: c1, capacity: 1GiB, replica: r, stage: 1}]\n";
constexpr char kShards[] =
    "model: m\npolicy: local\ncompute: [{name: c0, capacity: 2GiB, replica: r, shard: 0}, "
    "{name: c1, capacity: 1GiB, replica: r, shard: 1}]\n";

TEST(PolicyTest, LocalHasALaneForEachReplicaAndStage) {
  for (const auto& [text, lanes] : {std::pair{kReplicas, 2u}, {kStages, 2u}, {kShards, 1u}}) {
    SCOPED_TRACE(text);
    const auto config = Parse(text);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->pipeline.lanes, lanes);
    const auto again = Parse(ToYaml(*config));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->pipeline.lanes, lanes);
  }
  EXPECT_EQ(Parse(kStages, {"pipeline.lanes=3"})->pipeline.lanes, 3u);
  EXPECT_EQ(Parse(kShards, {"pipeline.lanes=2"})->pipeline.lanes, 2u);
  EXPECT_EQ(Parse(kStages, {"pipeline.mode=sequential"})->pipeline.lanes, 1u);
  EXPECT_THAT(Parse(kReplicas, {"pipeline.lanes=4"}).status().ToString(),
              HasSubstr("set it to 2 or auto"));
  const std::string two = std::string(kShards) + "pipeline: {lanes: 3}\n";
  EXPECT_TRUE(Parse(two).ok());
  EXPECT_THAT(Parse(kReplicas, {"pipeline.mode=sequential"}).status().ToString(),
              HasSubstr("replicas contradict pipeline.mode sequential"));
  EXPECT_THAT(Parse(kStages, {"compute.1.capacity=null"}).status().ToString(),
              HasSubstr("compute.1.capacity: missing or zero"));
  EXPECT_THAT(
      Parse(kReplicas, {"prefill.mode=dedicated", "compute.1.role=prefill"}).status().ToString(),
      HasSubstr("compute.1.role: prefill contradicts policy local"));
}

TEST(PolicyTest, LanesOfReplicasInPartsAreAsManyForEach) {
  const std::string text =
      "model: m\npolicy: local\ncompute:\n"
      "- {name: c0, capacity: 2GiB, replica: r0, shard: 0}\n"
      "- {name: c1, capacity: 2GiB, replica: r0, shard: 1}\n"
      "- {name: c2, capacity: 2GiB, replica: r1, shard: 0}\n"
      "- {name: c3, capacity: 2GiB, replica: r1, shard: 1}\n";
  EXPECT_EQ(Parse(text)->pipeline.lanes, 2u);
  EXPECT_EQ(Parse(text, {"pipeline.lanes=4"})->pipeline.lanes, 4u);
  EXPECT_THAT(Parse(text, {"pipeline.lanes=3"}).status().ToString(),
              HasSubstr("set it to a multiple of 2, or auto"));
}

constexpr char kHybrid[] =
    "model: m\npolicy: fetch_hybrid\ncompute: [{name: c0}]\n"
    "memory: [{name: m0, capacity: 1GiB}]\n";

TEST(PolicyTest, PackingIsOffUnlessSaid) {
  const auto off = Parse(kHybrid);
  ASSERT_TRUE(off.ok()) << off.status();
  EXPECT_FALSE(off->fetch.packing);
  EXPECT_THAT(ToYaml(*off), ::testing::Not(HasSubstr("packing")));
  const auto on = Parse(kHybrid, {"fetch.packing=true"});
  ASSERT_TRUE(on.ok()) << on.status();
  EXPECT_TRUE(on->fetch.packing);
  const auto again = Parse(ToYaml(*on));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->fetch.packing);
}

TEST(PolicyTest, PackingIsOfFetchHybridAlone) {
  const auto error = [](const std::string& policy) {
    return Parse(kHybrid, {"fetch.packing=true", "policy=" + policy}).status().ToString();
  };
  EXPECT_THAT(error("fetch_recompute"),
              HasSubstr("fetch.packing: says that requests of lanes change places, and the policy "
                        "is fetch_recompute; remove it, or set policy to fetch_hybrid"));
  EXPECT_THAT(error("auto"), HasSubstr("nor does it weigh what resident saves, or packing"));
  EXPECT_THAT(error("attend_remote"), HasSubstr("fetch: says how K and V are fetched"));
}

TEST(PolicyTest, ActivationsInF32AreRefusedWhereThereAreAny) {
  const auto error = [](std::vector<std::string> overrides) {
    overrides.emplace_back("compute.0.compute_type=f32");
    return Parse(kHybrid, overrides).status().ToString();
  };
  EXPECT_THAT(error({"policy=fetch_recompute"}),
              AllOf(HasSubstr("compute.0.compute_type: f32 is not served"),
                    HasSubstr("with policy fetch_recompute, for recomputation cannot pay")));
  EXPECT_THAT(error({"fetch.activation_percent=1"}),
              HasSubstr("with policy fetch_hybrid, for recomputation cannot pay"));
  EXPECT_EQ(error({"fetch.activation_percent=0"}), "OK");
  EXPECT_EQ(error({"policy=fetch_hybrid"}), "OK") << "the model decides";
  for (const std::string policy : {"fetch_recompute", "fetch_hybrid"}) {
    EXPECT_EQ(error({"policy=" + policy, "kv=int8"}), "OK");
  }
  EXPECT_THAT(error({"policy=attend_remote", "policies=[attend_remote, fetch_recompute]"}),
              HasSubstr("recomputation cannot pay"));
  EXPECT_EQ(error({"policy=fetch_recompute", "fetch.recompute=tokens"}), "OK");
  EXPECT_EQ(error({"policy=fetch_heads"}), "OK");
}

TEST(PolicyTest, WhatIsWrittenReadsBackAsTheSame) {
  const auto config = Parse(kLocal);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto again = Parse(ToYaml(*config));
  ASSERT_TRUE(again.ok()) << again.status() << ToYaml(*config);
  EXPECT_EQ(again->policy, kPolicyLocal);
  EXPECT_EQ(again->compute[0].capacity_bytes, GiB(2));
  EXPECT_TRUE(again->memory.empty());
  EXPECT_EQ(again->pipeline.lanes, 1u);
}

struct Contradiction {
  std::string change;
  std::string message;
};

class ContradictionTest : public ::testing::TestWithParam<Contradiction> {};

TEST_P(ContradictionTest, IsRefusedWithWhatToDo) {
  const auto config = Parse(kLocal, {GetParam().change});
  EXPECT_THAT(config.status().ToString(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, ContradictionTest,
    ::testing::Values(
        Contradiction{"memory=[{name: m0, capacity: 1GiB}]", "1 memory nodes (m0) would have"},
        Contradiction{"compute.0.capacity=null", "compute.0.capacity: missing or zero"},
        Contradiction{"compute.1={name: c1}", "compute.1.capacity: missing or zero"},
        Contradiction{"compute.1={name: c1, capacity: 1GiB, role: prefill}",
                      "contradict prefill.mode inline"},
        Contradiction{"compute.0.role=prefill", "contradict prefill.mode inline"},
        Contradiction{"partition=head", "policy local has none; set it to request"},
        Contradiction{"partition=token_range", "policy local has none; set it to request"},
        Contradiction{"pipeline.lanes=2", "set it to 1 or auto"},
        Contradiction{"pipeline.chunks=2", "pipeline.chunks: 2 contradicts policy local"},
        Contradiction{"pipeline.query_first=always", "pipeline.query_first: always contradicts"},
        Contradiction{"policy=attend_remote", "memory: the cluster has none"}));

TEST(PolicyTest, CapacityOfAComputeNodeNeedsPolicyLocal) {
  EXPECT_THAT(Parse("model: m\ncompute: [{name: c0, capacity: 1GiB}]\n"
                    "memory: [{name: m0, capacity: 1GiB}]\n")
                  .status()
                  .ToString(),
              AllOf(HasSubstr("compute.0.capacity"), HasSubstr("set policy to local")));
}

constexpr char kAuto[] =
    "model: m\npolicy: auto\ncompute: [{name: c0, cores: \"0-1\", capacity: 2GiB}]\n"
    "memory: [{name: m0, cores: \"1\", capacity: 1GiB}]\n";

TEST(PolicyTest, AutoHasWhatBothNeed) {
  const auto config = Parse(kAuto, {"policy_load={rows: 64, context: 512, prompts: 20}"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pipeline.lanes, 2u);
  EXPECT_TRUE(config->pipeline.lanes_auto);
  EXPECT_EQ(config->policy_load, (PolicyLoadConfig{.rows = 64, .context = 512, .prompts = 20}));

  const auto again = Parse(ToYaml(*config));
  ASSERT_TRUE(again.ok()) << again.status() << ToYaml(*config);
  EXPECT_EQ(again->policy, kPolicyAuto);
  EXPECT_EQ(again->policy_load, config->policy_load);
  EXPECT_EQ(again->compute[0].capacity_bytes, GiB(2));
  EXPECT_EQ(again->memory[0].capacity_bytes, GiB(1));
}

TEST(PolicyTest, AutoNeedsNoCapacityAndMayHaveWindows) {
  const auto config = Parse(kAuto, {"compute.0.capacity=null", "fetch={window: 32MiB, heads: 1}",
                                    "memory.0.attend=false"});
  ASSERT_TRUE(config.ok()) << config.status();
  const auto again = Parse(ToYaml(*config));
  ASSERT_TRUE(again.ok()) << again.status() << ToYaml(*config);
  EXPECT_EQ(again->compute[0].capacity_bytes, 0u);
  EXPECT_EQ(again->fetch, config->fetch);
  EXPECT_EQ(again->fetch.window_bytes, uint64_t{32} << 20);
  EXPECT_FALSE(again->memory[0].attend);
}

constexpr char kTokens[] =
    "model: m\npolicy: fetch_recompute\ncompute: [{name: c0}]\n"
    "memory: [{name: m0, capacity: 1GiB}]\nfetch: {recompute: tokens}\n";

TEST(PolicyTest, RecomputationIsFromTokenNumbersWhereTheFileSaysSo) {
  const auto config = Parse(kTokens, {"fetch.recompute_tokens_max=512"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->RecomputesFromTokens());
  EXPECT_TRUE(config->fetch.recompute_auto);
  EXPECT_EQ(config->fetch.recompute_tokens_max, 512u);
  EXPECT_FALSE(config->IsLossy());
  const auto again = Parse(ToYaml(*config));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->fetch, config->fetch);

  const auto activations = Parse(kTokens, {"fetch.recompute=activations"});
  ASSERT_TRUE(activations.ok()) << activations.status();
  EXPECT_FALSE(activations->RecomputesFromTokens());
  EXPECT_THAT(ToYaml(*activations), ::testing::Not(HasSubstr("recompute:")));
  EXPECT_TRUE(Parse(kTokens, {"partition=head", "fetch.recompute_percent=25"}).ok());
  EXPECT_TRUE(Parse(kTokens, {"partition=token_range"}).ok());
  EXPECT_TRUE(Parse(kTokens, {"kv=int8", "fetch.recompute_percent=25"}).ok());
}

class TokensContradictionTest : public ::testing::TestWithParam<Contradiction> {};

TEST_P(TokensContradictionTest, IsRefusedWithWhatToDo) {
  const auto config = Parse(kTokens, {GetParam().change});
  EXPECT_THAT(config.status().ToString(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, TokensContradictionTest,
    ::testing::Values(
        Contradiction{"fetch.recompute=magic", "activations, tokens"},
        Contradiction{"fetch.recompute_tokens_max=0", "fetch.recompute_tokens_max: 0 is not a"},
        Contradiction{"fetch.recompute_tokens_max=100", "a multiple of 16 from 16 on"},
        Contradiction{"fetch={recompute_tokens_max: 64}", "set fetch.recompute to tokens"},
        Contradiction{"fetch.recompute_percent=101", "fetch.recompute_percent: 101 is no number"},
        Contradiction{"fetch.resident=1MiB", "fetch.resident: is for activations"},
        Contradiction{"policy=fetch_heads", "fetch.recompute: says from what K and V are made"},
        Contradiction{"policy=auto", "nor does it weigh what resident saves"},
        Contradiction{"compute.1={name: c1}", "compute: 2 nodes are not served by this version"}));

TEST(PolicyTest, AStoreDoesNotAttend) {
  constexpr char kStore[] =
      "model: m\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB, attend: false}]\n";
  EXPECT_THAT(Parse(kStore).status().ToString(),
              AllOf(HasSubstr("memory.0.attend: false makes 'm0' a store"),
                    HasSubstr("set policy to one that fetches")));
  EXPECT_TRUE(Parse(kStore, {"policy=fetch_heads"}).ok());
  for (const std::string policy : {"fetch_heads", "fetch_recompute", "fetch_hybrid"}) {
    EXPECT_TRUE(Parse(kStore, {"policy=" + policy, "partition=token_range"}).ok()) << policy;
  }
  EXPECT_THAT(Parse(kStore, {"policies=[fetch_heads, attend_remote]"}).status().ToString(),
              HasSubstr("policies has attend_remote"));
}

TEST(PolicyTest, PoliciesThatFetchAreRefusedOnGpusByName) {
  for (const std::string policy :
       {"fetch_heads", "fetch_recompute", "fetch_hybrid", "fetch_sparse"}) {
    const std::string text =
        "model: m\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\npolicy: " + policy +
        "\n";
    EXPECT_TRUE(Parse(text).ok()) << Parse(text).status();
    for (const std::string node : {"compute.0", "memory.0"}) {
      EXPECT_THAT(Parse(text, {node + ".device=cuda"}).status().ToString(),
                  AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr(node + ".device: 'cuda'"),
                        HasSubstr("cpu, with policy " + policy)));
    }
  }
}

TEST(PolicyTest, TheDefaultLoadOfAutoNeedsNoLargerLimits) {
  EXPECT_TRUE(
      Parse(kAuto, {"limits={sequence_tokens_max: 256, running_max: 8}", "partition=auto"}).ok());
}

constexpr char kAutoReplicas[] =
    "model: m\npolicy: auto\nmemory: [{name: m0, cores: \"2\", capacity: 1GiB}]\n"
    "compute: [{name: c0, cores: \"0\", capacity: 2GiB}, {name: c1, cores: \"1\", capacity: "
    "2GiB}]\n";

TEST(PolicyTest, AutoServesReplicasThatShareNoCoresWithMemoryNodes) {
  const auto config = Parse(kAutoReplicas);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pipeline.lanes, 3u);
  EXPECT_TRUE(Parse(kAutoReplicas, {"pipeline.lanes=2"}).ok());
  EXPECT_THAT(Parse(kAutoReplicas, {"pipeline.lanes=1"}).status().ToString(),
              HasSubstr("set it to 2 or more, or auto"));
  EXPECT_THAT(Parse(kAutoReplicas, {"prefill.mode=dedicated", "compute.1.role=prefill"})
                  .status()
                  .ToString(),
              HasSubstr("compute.1: node 'c1' is for prompts"));
  EXPECT_THAT(Parse(kAutoReplicas, {"compute.1.cores=1-2"}).status().ToString(),
              HasSubstr("compute.1.cores: memory nodes name some of them"));
}

constexpr char kAutoParts[] =
    "model: m\npolicy: auto\nmemory: [{name: m0, cores: \"8\", capacity: 1GiB}]\ncompute:\n"
    "  - {name: c0, capacity: 2GiB, replica: r0, stage: 0, shard: 0}\n"
    "  - {name: c1, capacity: 2GiB, replica: r0, stage: 0, shard: 1}\n"
    "  - {name: c2, capacity: 2GiB, replica: r0, stage: 1, shard: 0}\n"
    "  - {name: c3, capacity: 2GiB, replica: r0, stage: 1, shard: 1}\n";

TEST(PolicyTest, AutoServesStagesAndShardsWithALaneForEachStage) {
  const auto config = Parse(kAutoParts);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pipeline.lanes, 4u);
  EXPECT_TRUE(config->pipeline.lanes_auto);
  EXPECT_EQ(LanesOfLocal(*config), 2u);
  EXPECT_TRUE(Parse(kAutoParts, {"pipeline.lanes=2"}).ok());
  EXPECT_THAT(Parse(kAutoParts, {"pipeline.lanes=1"}).status().ToString(),
              HasSubstr("pipeline.lanes: 1 is less than the 2 that 1 replica has"));
  EXPECT_THAT(Parse(kAutoParts, {"compute.2.cores=7-8"}).status().ToString(),
              HasSubstr("compute.2.cores: memory nodes name some of them"));
  EXPECT_THAT(Parse(kAutoParts, {"compute.3.capacity=null"}).status().ToString(),
              HasSubstr("compute.3.capacity: missing or zero"));
}

class AutoContradictionTest : public ::testing::TestWithParam<Contradiction> {};

TEST_P(AutoContradictionTest, IsRefusedWithWhatToDo) {
  const auto config = Parse(kAuto, {GetParam().change});
  EXPECT_THAT(config.status().ToString(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, AutoContradictionTest,
    ::testing::Values(
        Contradiction{"memory=[]", "memory: policy auto chooses between memory nodes and KV"},
        Contradiction{"fetch={caching_ratio: 0.4}", "takes no lossy policy"},
        Contradiction{"fetch={recompute_percent: 40}", "it settles recompute, recompute_percent"},
        Contradiction{"compute.1={name: c1, capacity: 1GiB}",
                      "compute.0.cores: memory nodes name some of them"},
        Contradiction{"memory.0.capacity=null", "memory.0.capacity: missing or zero"},
        Contradiction{"partition=head", "set it to request, or policy to attend_remote"},
        Contradiction{"partition=token_range", "set it to request, or policy to attend_remote"},
        Contradiction{"memory.0.cores=0-1", "compute.0.cores: memory nodes name all of them"},
        Contradiction{"policy_load.rows=0", "policy_load.rows: 0 is not in [1, 256]"},
        Contradiction{"policy_load.rows=300", "for limits.running_max is 256"},
        Contradiction{"policy_load.context=9000", "for limits.sequence_tokens_max is 8192"},
        Contradiction{"policy_load.prompts=9000", "policy_load.prompts: 9000 tokens of prompts"},
        Contradiction{"policy=attend_remote", "compute.0.capacity: KV is on memory nodes"},
        Contradiction{"policy=local", "1 memory nodes (m0) would have"}));

TEST(PolicyTest, ALoadIsForPolicyAuto) {
  EXPECT_THAT(Parse(kLocal, {"policy_load={rows: 4}"}).status().ToString(),
              AllOf(HasSubstr("policy_load"), HasSubstr("set policy to auto")));
}

TEST(MemoryCoresTest, SaysWhichCoresAreLeftToCompute) {
  const auto config = Parse(
      "model: m\npolicy: auto\ntransport: ucx\ncoordinator: {listen: 0.0.0.0:7400}\n"
      "compute: [{name: c0, cores: \"3,0-2\", capacity: 1GiB}]\nmemory:\n"
      "  - {name: m0, cores: \"2\", capacity: 1GiB}\n"
      "  - {name: m1, host: other, cores: \"1\", capacity: 1GiB}\n"
      "  - {name: m2, host: 127.0.0.1, cores: \"3,4\", capacity: 1GiB}\n");
  ASSERT_TRUE(config.ok()) << config.status();
  const SplitCores split = SplitCoresOf(*config, config->compute[0]);
  EXPECT_THAT(split.own, ElementsAre(0, 1));
  EXPECT_THAT(split.shared, ElementsAre(3, 2));
}

TEST(MemoryCoresTest, GroupsMemoryNodesByTheCoresTheyShare) {
  const auto config = Parse(kAuto, {"memory.1={name: m1, cores: \"4-5\", capacity: 1GiB}",
                                    "memory.2={name: m2, cores: \"1,7\", capacity: 1GiB}",
                                    "memory.3={name: m3, capacity: 1GiB}",
                                    "memory.4={name: m4, cores: \"5-6\", capacity: 1GiB}"});
  ASSERT_TRUE(config.ok()) << config.status();
  std::vector<std::vector<std::string>> shared;
  std::vector<std::vector<std::string>> others;
  for (const MemoryCores& group : MemoryCoresOf(*config, config->compute[0])) {
    (group.shared ? shared : others).push_back(group.names);
  }
  EXPECT_THAT(shared, ElementsAre(ElementsAre("m0", "m2")));
  EXPECT_THAT(others, ElementsAre(ElementsAre("m3"), ElementsAre("m1", "m4")));
}

// Their cores only look after the device.
TEST(MemoryCoresTest, GroupsMemoryNodesByTheDeviceTheyShare) {
  const auto config = Parse(
      "model: m\npolicy: auto\ntransport: ucx\ncoordinator: {listen: 0.0.0.0:7400}\n"
      "compute: [{name: c0, cores: \"0-3\", capacity: 1GiB}]\nmemory:\n"
      "  - {name: m0, device: cuda, cores: \"2\", capacity: 1GiB}\n"
      "  - {name: m1, device: \"cuda:1\", cores: \"2\", capacity: 1GiB}\n"
      "  - {name: m2, device: \"cuda:0\", host: 127.0.0.1, capacity: 1GiB}\n"
      "  - {name: m3, device: cuda, host: other, capacity: 1GiB}\n"
      "  - {name: m4, cores: \"2\", capacity: 1GiB}\n");
  ASSERT_TRUE(config.ok()) << config.status();
  std::vector<std::vector<std::string>> shared;
  std::vector<std::vector<std::string>> others;
  for (const MemoryCores& group : MemoryCoresOf(*config, config->compute[0])) {
    (group.shared ? shared : others).push_back(group.names);
  }
  EXPECT_THAT(shared, ElementsAre(ElementsAre("m4")));
  EXPECT_THAT(others, testing::UnorderedElementsAre(ElementsAre("m0", "m2"), ElementsAre("m1"),
                                                    ElementsAre("m3")));
}

}  // namespace
}  // namespace lamina
