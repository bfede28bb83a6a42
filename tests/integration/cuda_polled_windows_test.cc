// SPDX-License-Identifier: Apache-2.0
//
// Memory nodes whose query windows lie in their device's memory and which the device polls: words
// beside them, if it orders the writes of NICs, or else words of the host that a thread raises when
// it has flushed. Whole clusters with the bits of windows in the host's memory, over fake://, late
// and disordered, and verbs:// where there is an RDMA device. Emulated: a NIC that pins the
// device's memory by its address.

#include <memory>
#include <tuple>

#include "tests/integration/cluster_test_util.h"
#include "tests/integration/cuda_cluster_util.h"
#include "tests/integration/waiting_device_faults.h"
#include "tests/support/polled_memory.h"
#include "tests/unit/kernels/cuda/async_streams.h"
#include "transport/fake/fake_network.h"
#include "transport/registry.h"

namespace lamina::test_support {
namespace {

constexpr char kLateUri[] = "fake://polled_windows";

std::vector<std::string> PolledUris() {
  std::vector<std::string> uris = {kLateUri};
  if (transport::MakeTransport("verbs://").ok()) {
    uris.push_back("verbs://");
  }
  return uris;
}

class CudaPolledWindowsTest : public ::testing::TestWithParam<std::tuple<bool, std::string>> {
 protected:
  static bool ordered() { return std::get<0>(GetParam()); }
  static const std::string& uri() { return std::get<1>(GetParam()); }

  LocalClusterOptions Polled(const CudaCluster& wanted) {
    LocalClusterOptions options = OptionsOf(wanted, SmallModel());
    options.transports = {uri()};
    options.device_waits = true;
    options.other_device.window_memory = &memory_;
    return options;
  }
  static void ExpectDeviceServed(LocalCluster& cluster) {
    EXPECT_EQ(
        WindowsOf(cluster, "m0"),
        absl::StrCat("memory of cuda:0 by peermem", uri() == kLateUri ? "" : " (dmabuf: none here)",
                     ordered() ? "" : ", flushed by a thread", ", for which cuda:0 waits itself"));
    const telemetry::NodeCounters counters = cluster.handler("m0").Counters();
    EXPECT_GT(counters.device_units, 0u);
    EXPECT_GT(counters.units, counters.device_units) << "prompts are the processor's";
  }

  const std::shared_ptr<void> async_ = kernels::cuda::MakeStreamsAsync();
  const std::shared_ptr<transport::FakeNetwork> late_ = transport::FakeNetwork::Named(
      "polled_windows",
      {.seed = 13, .delay_steps_max = 4, .reaches_devices = true, .shows_memory = true});
  PolledMemory memory_{ordered()};
};

const CudaCluster kMemory = {.name = "Memory", .cuda = {"m0"}, .lanes = 2};
const CudaCluster kBothEnds = {.name = "BothEnds", .cuda = {"c0", "m0"}};

TEST_P(CudaPolledWindowsTest, HaveTheBitsOfWindowsInTheHostsMemory) {
  for (const CudaCluster& wanted : {kMemory, kBothEnds}) {
    SCOPED_TRACE(wanted.name);
    const std::vector<coordinator::GenerateSpec> requests = CudaRequests();
    std::vector<GenerateResult> expected;
    std::vector<GenerateResult> found;
    {
      const std::unique_ptr<LocalCluster> cluster = MakeCluster(OptionsOf(wanted, SmallModel()));
      ASSERT_NE(cluster, nullptr);
      for (const coordinator::GenerateSpec& spec : requests) {
        expected.push_back(cluster->Generate(spec));
      }
    }
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(Polled(wanted));
    ASSERT_NE(cluster, nullptr);
    for (const coordinator::GenerateSpec& spec : requests) {
      found.push_back(cluster->Generate(spec));
    }

    ExpectSame(found, expected);
    ExpectDeviceServed(*cluster);
    EXPECT_EQ(cluster->handler("m0").Counters().refused_messages, 0u);
  }
}

TEST_P(CudaPolledWindowsTest, NodesLeaveAndComeWhileTheDevicePolls) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Polled(kMemory));
  ASSERT_NE(cluster, nullptr);
  ExpectAnswersOutlive(*cluster, {"m0", "c0"});
  ExpectDeviceServed(*cluster);
}

// The processor cannot look at the header: what the device saw is what is told.
TEST_P(CudaPolledWindowsTest, AWindowOfAnOlderEpochIsRefusedAndCounted) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Polled(kMemory));
  ASSERT_NE(cluster, nullptr);
  ExpectOldEpochIsRefused(*cluster, "m0", uri(), QueryWindowOf);
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaPolledWindowsTest,
                         ::testing::Combine(::testing::Bool(), ::testing::ValuesIn(PolledUris())),
                         [](const auto& test) {
                           const std::string& uri = std::get<1>(test.param);
                           return absl::StrCat(std::get<0>(test.param) ? "Ordered" : "Flushed",
                                               "Over_", uri.substr(0, uri.find(':')));
                         });

}  // namespace
}  // namespace lamina::test_support
