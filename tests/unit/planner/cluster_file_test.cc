// SPDX-License-Identifier: Apache-2.0
#include "planner/cluster_file.h"

#include <tuple>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/epoch_config.h"
#include "plan/fetch_pieces.h"
#include "plan/slot_kinds.h"
#include "tests/unit/planner/problems.h"

namespace lamina::planner {
namespace {

using testing::HasSubstr;

Problem SmallProblem() {
  Problem problem;
  problem.catalogue = EmptyCatalogue();
  AddKind(problem.catalogue, "node", 100, 400, 10, 2, 0.5);
  problem.model = SmallModel();
  problem.load = {.rate = 0, .input = 1000, .output = 200};
  return problem;
}

Configuration Shape(const Problem& problem, uint32_t compute, uint32_t memory) {
  return {.hardware = {.compute = &problem.catalogue.machines[0],
                       .memory = memory > 0 ? &problem.catalogue.machines[0] : nullptr,
                       .compute_machines = compute,
                       .memory_machines = memory},
          .policy = memory > 0 ? cost::KvPolicy::kAttendRemote : cost::KvPolicy::kLocal};
}

TEST(ClusterFileTest, ReadsBackAsItWasWritten) {
  const Problem problem = SmallProblem();
  Configuration configuration = Shape(problem, 4, 2);
  configuration.replicas = 1;
  configuration.prompt_replicas = 1;
  configuration.stages = 2;
  configuration.shards = 2;
  configuration.lanes = 4;
  const Evaluation evaluation = Evaluate(problem, Rates(problem), configuration);
  ASSERT_TRUE(evaluation.feasible);
  const ClusterConfig config = ClusterFileOf(problem, configuration, evaluation, "model.gguf");
  const absl::StatusOr<ClusterConfig> read = ParseClusterConfig(ToYaml(config), "plan.yaml", {});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->compute.size(), 8u);
  EXPECT_EQ(read->CountCompute(ComputeRole::kPrefill), 4u);
  EXPECT_EQ(read->compute[3].host, "compute-1");
  EXPECT_EQ(read->compute[3].stage, 1u);
  EXPECT_EQ(read->compute[3].shard, 1u);
  EXPECT_GT(read->compute[3].price_per_hour, 0);
  EXPECT_EQ(read->memory[0].price_per_hour, read->compute[3].price_per_hour);
  EXPECT_EQ(read->memory.size(), 4u);
  EXPECT_EQ(read->pipeline.lanes, 4u);
  EXPECT_EQ(WhyNotRunnable(problem, configuration, evaluation), "");
}

TEST(ClusterFileTest, OnePoolHasItsKvOnTheComputeNode) {
  Problem problem = SmallProblem();
  problem.catalogue.machines[0].devices = 1;
  const Configuration configuration = Shape(problem, 1, 0);
  const Evaluation evaluation = Evaluate(problem, Rates(problem), configuration);
  EXPECT_EQ(WhyNotRunnable(problem, configuration, evaluation), "");
  const ClusterConfig config = ClusterFileOf(problem, configuration, evaluation, "model.gguf");
  EXPECT_LT(static_cast<double>(config.compute[0].capacity_bytes),
            90e9 - problem.model.WeightBytes());
}

// The homogeneous baseline: a lane for each stage of each replica, as the cluster file has it.
TEST(ClusterFileTest, OnePoolOfSeveralNodesIsRunnable) {
  const Problem problem = SmallProblem();
  for (const auto& [replicas, stages, shards] :
       {std::tuple{4u, 1u, 1u}, {2u, 2u, 1u}, {2u, 1u, 2u}, {1u, 2u, 2u}}) {
    SCOPED_TRACE(absl::StrCat(replicas, " ", stages, " ", shards));
    Configuration configuration = Shape(problem, 2, 0);
    configuration.replicas = replicas;
    configuration.stages = stages;
    configuration.shards = shards;
    configuration.lanes = replicas * stages;
    const Evaluation evaluation = Evaluate(problem, Rates(problem), configuration);
    EXPECT_EQ(WhyNotRunnable(problem, configuration, evaluation), "");
    const ClusterConfig config = ClusterFileOf(problem, configuration, evaluation, "model.gguf");
    EXPECT_EQ(config.pipeline.lanes, replicas * stages);
    EXPECT_GT(config.compute.back().capacity_bytes, 0u);
  }
}

TEST(ClusterFileTest, HostsAreMemoryNodesOfTheirMachines) {
  Problem problem = SmallProblem();
  AddKind(problem.catalogue, "card", 60, 1000, 100, 2, 1);
  problem.catalogue.devices[1].kind = cost::DeviceKind::kGpu;
  problem.catalogue.machines[1].host = "node";
  problem.catalogue.machines[1].host_devices = 2;
  problem.catalogue.machines[1].host_link = "wire";
  Configuration configuration = {.hardware = {.compute = &problem.catalogue.machines[1],
                                              .compute_machines = 1,
                                              .on_hosts = true},
                                 .replicas = 2,
                                 .lanes = 2,
                                 .policy = cost::KvPolicy::kAttendRemote};
  const Evaluation evaluation = Evaluate(problem, Rates(problem), configuration);
  ASSERT_TRUE(evaluation.feasible);
  EXPECT_EQ(WhyNotRunnable(problem, configuration, evaluation), "");
  ClusterConfig config = ClusterFileOf(problem, configuration, evaluation, "model.gguf");
  ASSERT_EQ(config.memory.size(), 2u);
  EXPECT_EQ(config.memory[1].host, config.compute[1].host);
  EXPECT_EQ(config.memory[1].device, "cpu");
  EXPECT_EQ(config.memory[1].price_per_hour, 0);
  EXPECT_EQ(config.compute[1].device, "cuda:1");
  configuration.hardware.compute_machines = 2;
  configuration.replicas = 4;
  config = ClusterFileOf(problem, configuration, evaluation, "model.gguf");
  ASSERT_EQ(config.memory.size(), 4u);
  EXPECT_EQ(config.memory[3].host, "compute-1");
  problem.catalogue.devices[0].runs = {false, "no cores"};
  EXPECT_EQ(WhyNotRunnable(problem, configuration, evaluation), "node: no cores");
}

// A cluster does not form with a node on which its longest sequence has no room.
TEST(ClusterFileTest, SequencesAreAsLongAsANodeHasRoomFor) {
  Problem problem = SmallProblem();
  const double kv = problem.model.KvBytesPerToken();
  const Configuration two_pools = Shape(problem, 1, 1);
  const auto limit = [&](const Configuration& configuration) {
    const Evaluation evaluation = Evaluate(problem, Rates(problem), configuration);
    return ClusterFileOf(problem, configuration, evaluation, "m").limits.sequence_tokens_max;
  };
  EXPECT_EQ(limit(two_pools), 8192u);
  problem.catalogue.devices[0].capacity.value = (problem.model.WeightBytes() + 3000 * kv) / 0.9;
  Configuration one_pool = Shape(problem, 1, 0);
  one_pool.replicas = 2;
  one_pool.lanes = 2;
  EXPECT_GT(limit(one_pool), 1200u);
  EXPECT_LE(limit(one_pool), 3000u);
  EXPECT_EQ(limit(two_pools), 8192u) << "memory nodes have no weights";
  problem.catalogue.devices[0].capacity.value = (problem.model.WeightBytes() + 800 * kv) / 0.9;
  const Evaluation evaluation = Evaluate(problem, Rates(problem), one_pool);
  EXPECT_THAT(WhyNotRunnable(problem, one_pool, evaluation),
              HasSubstr("tokens of one sequence, and a request has 1200"));
}

// The coordinator checks it before it serves, by plan::CheckFetch().
TEST(ClusterFileTest, WindowsOfPoliciesThatFetchHoldTheLongestSequence) {
  Problem problem = SmallProblem();
  problem.catalogue.machines[0].devices = 1;
  for (const auto& [policy, memory, mebibytes] : {std::tuple{cost::KvPolicy::kFetchHeads, 1u, 64u},
                                                  {cost::KvPolicy::kFetchHeads, 12u, 97u},
                                                  {cost::KvPolicy::kFetchRecompute, 1u, 65u},
                                                  {cost::KvPolicy::kFetchRecompute, 3u, 193u},
                                                  {cost::KvPolicy::kFetchHybrid, 3u, 193u}}) {
    SCOPED_TRACE(absl::StrCat(cost::KvPolicyName(policy), " ", memory));
    Configuration configuration = Shape(problem, 1, memory);
    configuration.policy = policy;
    const Rates rates(problem);
    const Evaluation evaluation = Evaluate(problem, rates, configuration);
    ASSERT_EQ(WhyNotRunnable(problem, configuration, evaluation), "");
    const ClusterConfig config = ClusterFileOf(problem, configuration, evaluation, "m");
    EXPECT_EQ(config.fetch.window_bytes, uint64_t{mebibytes} << 20);
    EXPECT_EQ(rates.ClusterOf(configuration).fetch_window, config.fetch.window_bytes);

    const cost::ModelShape& model = problem.model;
    const bool activations = policy != cost::KvPolicy::kFetchHeads;
    const bool hybrid = policy == cost::KvPolicy::kFetchHybrid;
    plan::EpochConfig epoch;
    epoch.lanes = config.pipeline.lanes;
    epoch.sequence_tokens_max = config.limits.sequence_tokens_max;
    epoch.layers = {
        {.query_heads = model.query_heads, .kv_heads = model.kv_heads, .head_dim = model.head_dim}};
    epoch.compute_nodes = {"c0"};
    epoch.attention_paths = {policy == cost::KvPolicy::kFetchRecompute
                                 ? plan::AttentionPath::kRecompute
                             : hybrid ? plan::AttentionPath::kHybrid
                                      : plan::AttentionPath::kFetch};
    epoch.fetch_bytes = config.fetch.window_bytes;
    epoch.activation_width = activations ? model.width : 0;
    epoch.activation_share = hybrid ? plan::SlotKinds::kUnit / 2 : 0;
    for (const MemoryNodeConfig& node : config.memory) {
      epoch.memory_nodes.push_back(node.name);
    }
    EXPECT_TRUE(plan::CheckFetch(epoch).ok()) << plan::CheckFetch(epoch);
  }
}

TEST(ClusterFileTest, WhatTheClusterFileRefusesIsNotRunnable) {
  const Problem problem = SmallProblem();
  Configuration configuration = Shape(problem, 2, 2);
  configuration.replicas = 4;
  Evaluation evaluation = Evaluate(problem, Rates(problem), configuration);
  EXPECT_EQ(WhyNotRunnable(problem, configuration, evaluation), "");
  configuration.policy = cost::KvPolicy::kFetchHybrid;
  EXPECT_THAT(WhyNotRunnable(problem, configuration, evaluation),
              HasSubstr("4 nodes are not served by this version with policy fetch_hybrid"));
  configuration.policy = cost::KvPolicy::kFetchHeads;
  EXPECT_THAT(WhyNotRunnable(problem, configuration, evaluation),
              HasSubstr("4 nodes are not served by this version with policy fetch_heads"));
  configuration.policy = cost::KvPolicy::kFetchSparse;
  EXPECT_EQ(WhyNotRunnable(problem, configuration, evaluation),
            "policy fetch_sparse: answers are lossy, which no plan chooses by itself");
  configuration.policy = cost::KvPolicy::kAttendRemote;
  configuration.lanes = 16;
  EXPECT_THAT(WhyNotRunnable(problem, configuration, evaluation),
              HasSubstr("it takes 16 lanes, and a cluster has at most 8"));
}

}  // namespace
}  // namespace lamina::planner
