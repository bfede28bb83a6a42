// SPDX-License-Identifier: Apache-2.0
//
// In the emulation a row of a product has the same bits with whatever other rows; so clusters
// whose compute nodes are all on the device agree to the bit, however they are cut, whether their
// slices are captured or run op by op, and so does one that goes on after the device has failed.

#include <optional>

#include "tests/integration/cuda_cluster_util.h"
#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/cuda_emulation/host_memory.h"
#include "tests/support/cuda_emulation/streams.h"

namespace lamina::test_support {
namespace {

bool ComputesOnCudaAlone(const CudaCluster& cluster) {
  const size_t nodes = cluster.compute_nodes + cluster.prefill_nodes;
  return nodes ==
         static_cast<size_t>(std::count_if(cluster.cuda.begin(), cluster.cuda.end(),
                                           [](const std::string& name) { return name != "m0"; }));
}

std::vector<CudaCluster> Cuts() {
  std::vector<CudaCluster> cuts;
  for (const CudaCluster& cluster : CudaClusters()) {
    // Shards sum their parts in another order.
    if (ComputesOnCudaAlone(cluster) && !cluster.parallel && cluster.shards == 1) {
      cuts.push_back(cluster);
    }
  }
  return cuts;
}

std::vector<GenerateResult> OneByOne(LocalCluster& cluster) {
  std::vector<GenerateResult> results;
  for (const coordinator::GenerateSpec& spec : CudaRequests()) {
    results.push_back(cluster.Generate(spec));
  }
  return results;
}

uint64_t ReplayedUnits(LocalCluster& cluster, const std::vector<std::string>& nodes) {
  uint64_t replayed = 0;
  for (const std::string& node : nodes) {
    replayed += cluster.handler(node).Counters().replayed_units;
  }
  return replayed;
}

// Memory for graphs runs out: its nodes serve all the same.
std::unique_ptr<LocalCluster> MakeOpByOp(const LocalClusterOptions& options) {
  cuda_emulation::FailInstantiations(true);
  std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  cuda_emulation::FailInstantiations(false);
  return cluster;
}

TEST(CudaComputeBitsTest, EveryCutHasTheBitsOfOneDevice) {
  std::vector<GenerateResult> expected;
  {
    const auto cluster = MakeOpByOp(OptionsOf({.name = "One"}, SmallModel()));
    ASSERT_NE(cluster, nullptr);
    expected = OneByOne(*cluster);
    EXPECT_EQ(ReplayedUnits(*cluster, {"c0"}), 0u);
  }
  for (const CudaCluster& cut : Cuts()) {
    SCOPED_TRACE(cut.name);
    const auto cluster = MakeCluster(OptionsOf(cut, SmallModel()));
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(CudaRequests()), expected);
    EXPECT_GT(ReplayedUnits(*cluster, cut.cuda), 0u);
  }
}

// Cuts that are compared with no other: sums over shards, and work overlapped with attention, make
// several pieces of a slice.
TEST(CudaComputeBitsTest, SlicesInPiecesHaveTheBitsOfOpsOneByOne) {
  for (const CudaCluster& cut : CudaClusters()) {
    if (!ComputesOnCudaAlone(cut) || (cut.shards == 1 && !cut.parallel)) {
      continue;
    }
    SCOPED_TRACE(cut.name);
    const RandomModelSpec model = cut.parallel ? SmallParallelModel() : SmallModel();
    std::vector<GenerateResult> expected;
    {
      const auto cluster = MakeOpByOp(OptionsOf(cut, model));
      ASSERT_NE(cluster, nullptr);
      expected = cluster->GenerateMany(CudaRequests());
      EXPECT_EQ(ReplayedUnits(*cluster, cut.cuda), 0u);
    }
    const auto cluster = MakeCluster(OptionsOf(cut, model));
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(CudaRequests()), expected);
    EXPECT_GT(ReplayedUnits(*cluster, cut.cuda), 0u);
  }
}

const CudaCluster& ClusterOf(const std::vector<CudaCluster>& clusters, const std::string& name) {
  return *std::find_if(clusters.begin(), clusters.end(),
                       [&](const CudaCluster& cluster) { return cluster.name == name; });
}

// Where K and V of a shard's heads are does not show.
TEST(CudaComputeBitsTest, APoolOfShardsHasTheBitsOfShardsWithMemoryNodes) {
  const std::vector<CudaCluster> clusters = CudaClusters();
  std::vector<std::vector<GenerateResult>> results;
  for (const char* const name : {"Shards", "OnePoolShards"}) {
    const auto cluster = MakeCluster(OptionsOf(ClusterOf(clusters, name), SmallModel()));
    ASSERT_NE(cluster, nullptr);
    results.push_back(cluster->GenerateMany(CudaRequests()));
  }
  ExpectSame(results[1], results[0]);
}

// Slots run out, so that sequences are recomputed; then a replica goes, and its sequences start
// again on the other device.
TEST(CudaComputeBitsTest, RequestsOfAPoolOutliveSlotsAndAReplica) {
  const std::vector<CudaCluster> clusters = CudaClusters();
  LocalClusterOptions options = OptionsOf(ClusterOf(clusters, "OnePoolReplicas"), SmallModel());
  options.sequence_tokens_max = 48;
  options.slots = 56;
  std::vector<coordinator::GenerateSpec> specs;
  for (uint64_t i = 0; i < 6; ++i) {
    specs.push_back(Greedy(RandomPrompt(6 + i, i), 24));
  }
  const auto cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  std::vector<GenerateResult> alone;
  for (const coordinator::GenerateSpec& spec : specs) {
    alone.push_back(cluster->Generate(spec));
  }
  ExpectSame(cluster->GenerateMany(specs), alone);
  EXPECT_GT(cluster->engine().GetStatus().scheduler.preemptions, 0u);
  std::vector<std::shared_ptr<LocalRequest>> requests;
  for (const coordinator::GenerateSpec& spec : specs) {
    requests.push_back(cluster->Start(spec));
  }
  requests[0]->WaitForTokens(2);

  cluster->Detach("c1");

  std::vector<GenerateResult> results;
  for (const std::shared_ptr<LocalRequest>& request : requests) {
    results.push_back(request->Wait());
  }
  ExpectSame(results, alone);
  EXPECT_TRUE(cluster->WaitForEpoch(2).ok());
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Chunks, lanes, partitions: on tensor cores too they do not change a row's bits.
TEST(CudaComputeBitsTest, EveryCutHasTheBitsOfOneDeviceOnTensorCores) {
  std::vector<GenerateResult> expected;
  {
    const auto cluster = MakeCluster(OptionsOf(TensorClusters()[0], SmallModel()));
    ASSERT_NE(cluster, nullptr);
    expected = OneByOne(*cluster);
  }
  for (const CudaCluster& cut : TensorClusters()) {
    SCOPED_TRACE(cut.name);
    const auto cluster = MakeCluster(OptionsOf(cut, SmallModel()));
    ASSERT_NE(cluster, nullptr);
    ExpectSame(cluster->GenerateMany(CudaRequests()), expected);
  }
}

// A failed device: its request goes on in the next epoch, with the bits that it would have had.
void ExpectEpochEndsAndNoRequest(const LocalClusterOptions& options) {
  const auto cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const GenerateResult expected = cluster->Generate(Greedy(RandomPrompt(20, 2), 30));
  const uint64_t epoch = cluster->engine().GetStatus().epoch;
  const auto request = cluster->Start(Greedy(RandomPrompt(20, 2), 30));
  request->WaitForTokens(3);

  cuda_emulation::FailNextSynchronize();

  const GenerateResult found = request->Wait();
  ExpectSame({found}, {expected});
  EXPECT_TRUE(cluster->WaitForEpoch(epoch + 1).ok());
}

// Whose device exchanges rows by itself where that is possible, behind the caller's back or not.
class CudaComputeBitsWaitsTest : public ::testing::TestWithParam<bool> {
 protected:
  static std::vector<CudaCluster> Waiting() {
    std::vector<CudaCluster> clusters;
    for (const uint32_t lanes : {1, 2}) {
      for (const uint32_t memory_nodes : {1, 2, 3}) {
        clusters.push_back({.name = absl::StrCat(lanes, " lanes ", memory_nodes, " memory nodes"),
                            .memory_nodes = memory_nodes,
                            .lanes = lanes});
      }
    }
    return clusters;
  }
  // More than there are lanes; some begin while others decode. Prompts are what takes time here.
  static std::vector<coordinator::GenerateSpec> Requests() {
    std::vector<coordinator::GenerateSpec> specs;
    for (const size_t tokens : {1u, 17u, 30u}) {
      specs.push_back(Greedy(RandomPrompt(tokens, tokens), 8));
    }
    for (const int32_t logprobs : {2, -1}) {  // Sampled on the host, and on the device.
      specs.push_back(Sampled(RandomPrompt(6, 3), 8, 5));
      specs.back().sampling.logprobs = logprobs;
    }
    return specs;
  }

  void SetUp() override {
    if (GetParam()) {
      threaded_.emplace();
    }
  }
  std::optional<cuda_emulation::ThreadedStreams> threaded_;
};

TEST_P(CudaComputeBitsWaitsTest, HasTheBitsOfRowsThatTheHostCarries) {
  std::vector<GenerateResult> expected;
  {
    const auto cluster = MakeCluster(OptionsOf({.name = "One"}, SmallModel()));
    ASSERT_NE(cluster, nullptr);
    for (const coordinator::GenerateSpec& spec : Requests()) {
      expected.push_back(cluster->Generate(spec));
    }
    EXPECT_EQ(cluster->handler("c0").Counters().device_units, 0u);
  }
  for (const CudaCluster& waiting : Waiting()) {
    SCOPED_TRACE(waiting.name);
    LocalClusterOptions options = OptionsOf(waiting, SmallModel());
    options.device_waits = true;
    const auto cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);

    ExpectSame(cluster->GenerateMany(Requests()), expected);

    const telemetry::NodeCounters counters = cluster->handler("c0").Counters();
    EXPECT_GT(counters.device_units, 0u);
    EXPECT_LT(counters.device_units, counters.units);  // Prompts and tails.
    EXPECT_GT(counters.replayed_units, 0u);
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }
}

TEST_P(CudaComputeBitsWaitsTest, AFailureOfTheDeviceEndsTheEpochAndNoRequest) {
  LocalClusterOptions options = OptionsOf({.name = "Two", .lanes = 2}, SmallModel());
  options.device_waits = true;
  ExpectEpochEndsAndNoRequest(options);
}

INSTANTIATE_TEST_SUITE_P(Streams, CudaComputeBitsWaitsTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Threaded" : "AtOnce"; });

TEST(CudaComputeBitsTest, WindowsThatAreNotRegisteredAreTheHosts) {
  LocalClusterOptions options = OptionsOf({.name = "One"}, SmallModel());
  options.device_waits = true;
  cuda_emulation::FailRegistrations(true);
  const auto cluster = MakeCluster(options);
  cuda_emulation::FailRegistrations(false);
  ASSERT_NE(cluster, nullptr);

  EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(20, 2), 3)).status.ok());

  EXPECT_EQ(cluster->handler("c0").Counters().device_units, 0u);
  for (const coordinator::NodeReport& node : cluster->engine().GetStatus().nodes) {
    if (node.member.name == "c0") {
      EXPECT_THAT(node.windows, ::testing::HasSubstr("cudaErrorMemoryAllocation"));
    }
  }
}

TEST(CudaComputeBitsTest, AFailureOfTheDeviceEndsTheEpochAndNoRequest) {
  ExpectEpochEndsAndNoRequest(OptionsOf({.name = "One"}, SmallModel()));
}

}  // namespace
}  // namespace lamina::test_support
