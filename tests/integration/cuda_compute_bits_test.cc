// SPDX-License-Identifier: Apache-2.0
//
// In the emulation a row of a product has the same bits beside whatever other rows; so clusters
// whose compute nodes are all on the device agree to the bit, however they are cut, whether their
// slices are recorded or run op by op, and so does one that goes on after the device has failed.

#include "tests/integration/cuda_cluster_util.h"
#include "tests/support/cuda_emulation/emulation.h"
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

// Cuts that are compared with no other: sums over shards, and work beside attention, make several
// pieces of a slice.
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

TEST(CudaComputeBitsTest, AFailureOfTheDeviceEndsTheEpochAndNoRequest) {
  const auto cluster = MakeCluster(OptionsOf({.name = "One"}, SmallModel()));
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

}  // namespace
}  // namespace lamina::test_support
