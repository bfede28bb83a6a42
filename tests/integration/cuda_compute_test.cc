// SPDX-License-Identifier: Apache-2.0
//
// Clusters with compute nodes on a CUDA device against one on the processor: the same tokens as
// long as no choice is close, and log-probabilities within kTolerance. Their products sum in
// another order, so now and then a value falls to the other side of a bf16 step, 2^-8 of itself.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/compute_device.h"
#include "kernels/cuda/kv_device.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/integration/cuda_cluster_util.h"

namespace lamina::test_support {
namespace {

// In the emulation they are 0.0024 apart at most, over all cases; a device sums in an order of its
// own.
constexpr float kTolerance = 0.03f;

// On a device these must end in time; cuda_compute_bits_test.cc has all.
std::vector<CudaCluster> FewTensorClusters() {
  std::vector<CudaCluster> few = TensorClusters();
  std::erase_if(few, [](const CudaCluster& cluster) {
    return cluster.partition == Partition::kRequest && cluster.prefill_nodes == 0 &&
           !cluster.long_prompt;
  });
  return few;
}

class CudaComputeTest : public ::testing::TestWithParam<CudaCluster> {};

TEST_P(CudaComputeTest, FollowsTheProcessor) {
  const RandomModelSpec model = GetParam().parallel ? SmallParallelModel() : SmallModel();
  const std::vector<coordinator::GenerateSpec> requests = CudaRequests(GetParam().long_prompt);
  std::vector<GenerateResult> expected;
  GenerateResult scores;
  const std::vector<TokenId> scored = RandomPrompt(70, 9);  // More rows than one batch of logits.
  {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(PlainOptions(model));
    ASSERT_NE(cluster, nullptr);
    for (const coordinator::GenerateSpec& spec : requests) {
      expected.push_back(cluster->Generate(spec));
    }
    scores = cluster->Score(scored);
  }
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(OptionsOf(GetParam(), model));
  ASSERT_NE(cluster, nullptr);

  const std::vector<GenerateResult> found = cluster->GenerateMany(requests);
  const GenerateResult found_scores = cluster->Score(scored);

  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i));
    ASSERT_TRUE(found[i].status.ok()) << found[i].status;
    ExpectFollows(found[i].choices[0], expected[i].choices[0], kTolerance);
  }
  ASSERT_TRUE(found_scores.status.ok()) << found_scores.status;
  ASSERT_EQ(found_scores.scores.size(), scored.size() - 1);
  for (size_t i = 0; i < scored.size() - 1; ++i) {
    EXPECT_NEAR(found_scores.scores[i], scores.scores[i], kTolerance) << "token " << i + 1;
  }
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

INSTANTIATE_TEST_SUITE_P(Clusters, CudaComputeTest, ::testing::ValuesIn(CudaClusters()),
                         [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(TensorClusters, CudaComputeTest, ::testing::ValuesIn(FewTensorClusters()),
                         [](const auto& test) { return test.param.name; });

// With times that the node says it has measured: few rows attend at memory nodes, many on the
// device.
TEST(CudaComputeNodeTest, PolicyAutoHasTheTokensOfBothPolicies) {
  std::vector<std::vector<GenerateResult>> results;
  for (const double rows : {1.0, 32.0}) {
    LocalClusterOptions options = OptionsOf({.name = "Auto"}, SmallModel());
    options.policy_auto = coordinator::PolicyAutoOptions{.load = {.rows = rows, .context = 100},
                                                         .memory = {{.names = {"m0"}}}};
    options.policy_times = {.attention_local = 1e12, .read_bandwidth = 1e12};
    for (const uint32_t of_rows : {1u, 64u}) {
      const double local = 1e-3 * (8 + of_rows);
      const double pools = 2e-3 * of_rows;
      options.policy_times.local.push_back({of_rows, local, local});
      options.policy_times.pools.push_back({of_rows, pools, pools});
    }
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    results.push_back(cluster->GenerateMany(CudaRequests()));
    EXPECT_EQ(cluster->engine().GetStatus().policy, rows > 8 ? "local" : "attend_remote");
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
  ExpectSame(results[1], results[0]);
}

// Replicas, and memory nodes on the device too.
TEST(CudaComputeNodeTest, PolicyAutoOfReplicasHasTheTokensOfBothPolicies) {
  std::vector<std::vector<GenerateResult>> results;
  for (const double rows : {1.0, 64.0}) {
    LocalClusterOptions options = OptionsOf(
        {.name = "Auto", .cuda = {"c0", "c1", "m0"}, .compute_nodes = 2, .lanes = 2}, SmallModel());
    options.policy_auto = coordinator::PolicyAutoOptions{.load = {.rows = rows, .context = 100},
                                                         .memory = {{.names = {"m0"}}}};
    options.policy_times = {.attention_local = 1e12, .read_bandwidth = 1e12};
    for (const uint32_t of_rows : {1u, 64u}) {
      const double local = 1e-3 * (8 + of_rows);
      const double pools = 2e-3 * of_rows;
      options.policy_times.local.push_back({of_rows, local, local});
      options.policy_times.pools.push_back({of_rows, pools, pools});
    }
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    results.push_back(cluster->GenerateMany(CudaRequests()));
    const coordinator::EngineStatus status = cluster->engine().GetStatus();
    EXPECT_EQ(status.policy, rows > 8 ? "local" : "attend_remote") << status.policy_choice;
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
  ExpectSame(results[1], results[0]);
}

// Stages, and shards, by times that they say they have measured of their layers.
TEST(CudaComputeNodeTest, PolicyAutoOfStagesAndShardsHasTheTokensOfBothPolicies) {
  for (const bool in_stages : {true, false}) {
    SCOPED_TRACE(in_stages ? "stages" : "shards");
    std::vector<std::vector<GenerateResult>> results;
    for (const double rows : {1.0, 64.0}) {
      LocalClusterOptions options = OptionsOf({.name = "Auto",
                                               .cuda = {"c0", "c1", "m0"},
                                               .compute_nodes = 2,
                                               .stages = in_stages ? 2u : 1u,
                                               .shards = in_stages ? 1u : 2u,
                                               .lanes = 2},
                                              SmallModel());
      options.policy_auto = coordinator::PolicyAutoOptions{.load = {.rows = rows, .context = 100},
                                                           .memory = {{.names = {"m0"}}}};
      options.policy_times = {.attention_local = 1e12, .read_bandwidth = 1e12};
      for (const uint32_t of_rows : {1u, 64u}) {
        const double local = 1e-3 * (8 + of_rows);
        const double pools = 2e-3 * of_rows;
        options.policy_times.local.push_back({of_rows, local, local});
        options.policy_times.pools.push_back({of_rows, pools, pools});
      }
      const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
      ASSERT_NE(cluster, nullptr);
      // Later the load of late may count.
      const coordinator::EngineStatus status = cluster->engine().GetStatus();
      results.push_back(cluster->GenerateMany(CudaRequests()));
      EXPECT_EQ(status.policy, rows > 8 ? "local" : "attend_remote") << status.policy_choice;
      EXPECT_EQ(cluster->handler("c1").Counters().kv_bytes_read > 0, rows > 8);
      EXPECT_TRUE(cluster->WaitForNoSlots().ok());
    }
    ExpectSame(results[1], results[0]);
  }
}

TEST(CudaComputeNodeTest, WarnsOfPromptsAttendedInAnotherArithmetic) {
  LocalClusterOptions options = OptionsOf({.name = "Mixed"}, SmallModel());
  options.attention.prefill = AttentionArithmetic::kTensor;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(20, 2), 3)).status.ok());
  const std::vector<std::string> warnings = cluster->engine().GetStatus().warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(warnings[0].starts_with("bits may differ: prompts attend on tensor cores"))
      << warnings[0];
}

TEST(CudaComputeNodeTest, SaysWhereItsRowsGo) {
  const std::unique_ptr<LocalCluster> cluster =
      MakeCluster(OptionsOf({.name = "Alone"}, SmallModel()));
  ASSERT_NE(cluster, nullptr);
  for (const coordinator::NodeReport& node : cluster->engine().GetStatus().nodes) {
    EXPECT_EQ(node.windows.starts_with("host memory, rows are copied to cuda:0"),
              node.member.name == "c0")
        << node.windows;
  }
}

// With log-probabilities the host samples. Both kinds share batches.
TEST(CudaComputeNodeTest, SamplesOnTheDeviceWhatTheHostWould) {
  const std::unique_ptr<LocalCluster> cluster =
      MakeCluster(OptionsOf({.name = "Alone"}, SmallModel()));
  ASSERT_NE(cluster, nullptr);
  std::vector<coordinator::GenerateSpec> specs;
  for (uint64_t i = 0; i < 4; ++i) {
    for (const int32_t logprobs : {2, -1}) {
      specs.push_back(i % 2 == 0 ? Greedy(RandomPrompt(3 + i, i), 6)
                                 : Sampled(RandomPrompt(3 + i, i), 6, i));
      specs.back().sampling.logprobs = logprobs;
      specs.back().sampling.frequency_penalty = i < 2 ? 0.5f : 0.0f;
    }
  }

  const std::vector<GenerateResult> found = cluster->GenerateMany(specs);

  for (size_t i = 0; i < found.size(); i += 2) {
    ASSERT_TRUE(found[i].status.ok() && found[i + 1].status.ok());
    EXPECT_EQ(found[i + 1].choices[0].tokens, found[i].choices[0].tokens) << "request " << i / 2;
    EXPECT_EQ(found[i + 1].choices[0].finish, found[i].choices[0].finish);
  }
}

}  // namespace
}  // namespace lamina::test_support
