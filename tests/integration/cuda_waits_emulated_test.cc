// SPDX-License-Identifier: Apache-2.0
//
// Clusters whose device fails while it waits for windows, or may not have them: what only the
// emulation can be asked for.

#include "kernels/cuda/kv_device.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/cuda_emulation/host_memory.h"
#include "tests/support/cuda_emulation/streams.h"

namespace lamina::test_support {
namespace {

using testing::HasSubstr;

class CudaWaitsFailureTest : public ::testing::Test {
 protected:
  static LocalClusterOptions Options() {
    return {.model = SmallModel(),
            .slots = 4096,
            .sequence_tokens_max = 768,
            .other_device = {.names = {"m0"}, .make = kernels::cuda::CudaKvDevices(0)},
            .device_waits = true};
  }

  static std::string Windows(LocalCluster& cluster) {
    return cluster.engine().GetStatus().nodes.back().windows;  // The last node is m0.
  }

  const cuda_emulation::ThreadedStreams async_;
};

TEST_F(CudaWaitsFailureTest, WindowsThatTheDriverRefusesAreTheProcessors) {
  cuda_emulation::FailRegistrations(true);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Options());
  cuda_emulation::FailRegistrations(false);
  ASSERT_NE(cluster, nullptr);

  const GenerateResult result = cluster->Generate(Greedy(RandomPrompt(20, 2), 5));

  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_THAT(Windows(*cluster), HasSubstr("rows are copied to cuda:0, which does not wait itself: "
                                           "cudaHostRegister"));
  EXPECT_GT(cluster->handler("m0").Counters().units, 0u);
  EXPECT_EQ(cluster->handler("m0").Counters().device_units, 0u);
}

TEST_F(CudaWaitsFailureTest, AFailureOfTheDeviceEndsTheEpochAndNoRequest) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Options());
  ASSERT_NE(cluster, nullptr);
  const GenerateResult expected = cluster->Generate(Greedy(RandomPrompt(20, 2), 30));
  const uint64_t epoch = cluster->engine().GetStatus().epoch;
  const auto request = cluster->Start(Greedy(RandomPrompt(20, 2), 30));
  request->WaitForTokens(3);
  const uint64_t before = cluster->handler("m0").Counters().device_units;

  cuda_emulation::FailNextSynchronize();

  ASSERT_TRUE(cluster->WaitForEpoch(epoch + 1).ok());
  ExpectSame({request->Wait()}, {expected});
  EXPECT_GT(cluster->handler("m0").Counters().device_units, before);
}

TEST_F(CudaWaitsFailureTest, WindowsAreLetGoWithTheEpoch) {
  const size_t before = cuda_emulation::RegisteredPieces();
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Options());
  ASSERT_NE(cluster, nullptr);
  EXPECT_TRUE(cluster->Generate(Greedy(RandomPrompt(20, 2), 5)).status.ok());
  EXPECT_EQ(cuda_emulation::RegisteredPieces(), before + 2);

  cluster->Detach("m0");

  EXPECT_EQ(cuda_emulation::RegisteredPieces(), before);
}

}  // namespace
}  // namespace lamina::test_support
