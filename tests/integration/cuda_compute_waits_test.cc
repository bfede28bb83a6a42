// SPDX-License-Identifier: Apache-2.0
//
// Clusters whose compute node on a CUDA device exchanges rows by itself, against the same ones
// where the host carries them: the same tokens and log-probabilities to the bit.

#include "tests/integration/cluster_test_util.h"
#include "tests/integration/cuda_cluster_util.h"
#include "tests/unit/kernels/cuda/async_streams.h"

namespace lamina::test_support {
namespace {

using ::testing::HasSubstr;

LocalClusterOptions WithWaits(const CudaCluster& wanted) {
  LocalClusterOptions options =
      OptionsOf(wanted, wanted.parallel ? SmallParallelModel() : SmallModel());
  options.device_waits = true;
  return options;
}

// Over all compute nodes.
telemetry::NodeCounters UnitsOf(LocalCluster& cluster, const CudaCluster& wanted) {
  telemetry::NodeCounters sum;
  const auto add = [&](const std::string& name) {
    const telemetry::NodeCounters counters = cluster.handler(name).Counters();
    sum.units += counters.units;
    sum.device_units += counters.device_units;
  };
  for (uint32_t node = 0; node < wanted.compute_nodes; ++node) {
    add(absl::StrCat("c", node));
  }
  for (uint32_t node = 0; node < wanted.prefill_nodes; ++node) {
    add(absl::StrCat("p", node));
  }
  return sum;
}

class CudaComputeWaitsTest : public ::testing::TestWithParam<CudaCluster> {
 protected:
  // Memory nodes on the device launch further ahead than streams that work at once can follow.
  const std::shared_ptr<void> async_ = GetParam().cuda.size() > 1
                                           ? kernels::cuda::MakeStreamsAsync()
                                           : nullptr;
};

TEST_P(CudaComputeWaitsTest, HasTheBitsOfRowsThatTheHostCarries) {
  const std::vector<coordinator::GenerateSpec> requests = CudaRequests();
  std::vector<GenerateResult> expected;
  {
    LocalClusterOptions options = WithWaits(GetParam());
    options.device_waits = false;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    for (const coordinator::GenerateSpec& spec : requests) {
      expected.push_back(cluster->Generate(spec));
    }
    EXPECT_EQ(cluster->handler("c0").Counters().device_units, 0u);
    EXPECT_THAT(WindowsOf(*cluster, "c0"), HasSubstr("(device_waits is off)"));
  }
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(WithWaits(GetParam()));
  ASSERT_NE(cluster, nullptr);
  EXPECT_THAT(WindowsOf(*cluster, "c0"), HasSubstr(", exchanged by cuda:0"));

  std::vector<GenerateResult> found;
  for (const coordinator::GenerateSpec& spec : requests) {
    found.push_back(cluster->Generate(spec));
  }

  ExpectSame(found, expected);
  // Four tokens of each request behind the first, in every layer; prompts go the host's way.
  const uint64_t layers = GetParam().parallel ? 3 : 2;
  const telemetry::NodeCounters counters = UnitsOf(*cluster, GetParam());
  EXPECT_EQ(counters.device_units, requests.size() * 4 * layers);
  EXPECT_GT(counters.units, requests.size() * 4 * (layers + 1));
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

TEST_P(CudaComputeWaitsTest, RequestsSideBySideFollowTheHostsWay) {
  const std::vector<coordinator::GenerateSpec> requests = CudaRequests();
  std::vector<GenerateResult> expected;
  {
    LocalClusterOptions options = WithWaits(GetParam());
    options.device_waits = false;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    expected = cluster->GenerateMany(requests);
  }
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(WithWaits(GetParam()));
  ASSERT_NE(cluster, nullptr);

  const std::vector<GenerateResult> found = cluster->GenerateMany(requests);

  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i));
    ASSERT_TRUE(found[i].status.ok()) << found[i].status;
    ExpectFollows(found[i].choices[0], expected[i].choices[0], /*tolerance=*/0.03f);
  }
  EXPECT_GT(cluster->handler("c0").Counters().device_units, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Clusters, CudaComputeWaitsTest,
    ::testing::Values(
        CudaCluster{.name = "Alone"}, CudaCluster{.name = "TwoMemoryNodes", .memory_nodes = 2},
        CudaCluster{.name = "TwoLanes", .memory_nodes = 3, .lanes = 2},
        CudaCluster{.name = "Parallel", .lanes = 2, .parallel = true},
        CudaCluster{.name = "BothEnds", .cuda = {"c0", "m0", "m1"}, .memory_nodes = 2, .lanes = 2},
        CudaCluster{.name = "FixedReplicas",
                    .cuda = {"c0", "c1"},
                    .compute_nodes = 2,
                    .memory_nodes = 2,
                    .lanes = 4,
                    .mode = PipelineMode::kFixed},
        CudaCluster{.name = "BothEndsOfFixedReplicas",
                    .cuda = {"c0", "c1", "m0"},
                    .compute_nodes = 2,
                    .lanes = 2,
                    .mode = PipelineMode::kFixed},
        CudaCluster{.name = "WithPrefill",
                    .cuda = {"c0", "p0"},
                    .prefill_nodes = 1,
                    .memory_nodes = 2,
                    .lanes = 2}),
    [](const auto& test) { return test.param.name; });

TEST(CudaComputeWaitsNodeTest, RequestsOfAMemoryNodeThatLeavesGoOnElsewhere) {
  const std::unique_ptr<LocalCluster> cluster =
      MakeCluster(WithWaits({.name = "Two", .memory_nodes = 2}));
  ASSERT_NE(cluster, nullptr);
  const GenerateResult undisturbed = cluster->Generate(Greedy(RandomPrompt(9, 1), 60));
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(cluster->Start(Greedy(RandomPrompt(9, 1), 60)));
  }
  for (const std::shared_ptr<LocalRequest>& request : requests) {
    request->WaitForTokens(2);
  }

  cluster->Detach("m0");

  for (const std::shared_ptr<LocalRequest>& request : requests) {
    const GenerateResult found = request->Wait();
    ASSERT_TRUE(found.status.ok()) << found.status;
    ExpectFollows(found.choices[0], undisturbed.choices[0], /*tolerance=*/0.03f);
  }
  ASSERT_TRUE(cluster->WaitForState("serving; without m0").ok());
  const uint64_t units = cluster->handler("c0").Counters().device_units;
  ExpectSame({cluster->Generate(Greedy(RandomPrompt(9, 1), 60))}, {undisturbed});
  EXPECT_GT(cluster->handler("c0").Counters().device_units, units);
}

// Prompts are all that it gets.
TEST(CudaComputeWaitsNodeTest, APrefillNodeLeavesRowsToTheHost) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(
      WithWaits({.name = "Prefill", .cuda = {"c0", "p0"}, .prefill_nodes = 1, .lanes = 2}));
  ASSERT_NE(cluster, nullptr);

  EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(9, 1), 3)).status.ok());

  EXPECT_THAT(WindowsOf(*cluster, "p0"), HasSubstr("(it runs prefill only)"));
  EXPECT_EQ(cluster->handler("p0").Counters().device_units, 0u);
  EXPECT_GT(cluster->handler("c0").Counters().device_units, 0u);
}

TEST(CudaComputeWaitsNodeTest, SaysWhyTheHostCarriesRows) {
  LocalClusterOptions by_head =
      WithWaits({.name = "ByHead", .partition = Partition::kHead, .memory_nodes = 2});
  LocalClusterOptions replicas =
      WithWaits({.name = "Replicas", .cuda = {"c0", "c1"}, .compute_nodes = 2, .lanes = 2});
  LocalClusterOptions stages =
      WithWaits({.name = "Stages", .cuda = {"c0"}, .compute_nodes = 2, .stages = 2, .lanes = 2});
  LocalClusterOptions shards =
      WithWaits({.name = "Shards", .cuda = {"c0"}, .compute_nodes = 2, .shards = 2, .lanes = 2});
  LocalClusterOptions elsewhere = WithWaits({.name = "Throttled"});
  elsewhere.transports = {"throttle(bandwidth=1GB,latency=1us)+shm://"};
  for (const auto& [options, why] : {std::pair(by_head, "(the partition is not by request)"),
                                     std::pair(replicas, "(no lane stays on one compute node)"),
                                     std::pair(stages, "(no lane stays on one compute node)"),
                                     std::pair(shards, "(its replica has shards)"),
                                     std::pair(elsewhere, "+shm:// are the transport's alone)")}) {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);

    EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(9, 1), 3)).status.ok());

    EXPECT_THAT(WindowsOf(*cluster, "c0"), HasSubstr(why));
    EXPECT_EQ(cluster->handler("c0").Counters().device_units, 0u);
  }
}

// Rows in chunks have several signal values.
TEST(CudaComputeWaitsNodeTest, StepsWhoseRowsAreCutGoTheHostsWay) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(WithWaits(
      {.name = "QueriesFirst", .sub_batches = {.chunks = 2, .query_first = QueryFirst::kAlways}}));
  ASSERT_NE(cluster, nullptr);

  EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(9, 1), 3)).status.ok());

  EXPECT_EQ(cluster->handler("c0").Counters().device_units, 0u);
}

}  // namespace
}  // namespace lamina::test_support
