// SPDX-License-Identifier: Apache-2.0
//
// Compute nodes whose windows lie in their device's memory and which the device polls: words beside
// them, if it orders the writes of NICs, or else words of the host that a thread raises when it has
// flushed. Whole clusters with the bits of windows in the host's memory, over fake://, late and
// disordered, and verbs:// where there is an RDMA device. Emulated: a NIC that pins the device's
// memory by its address.

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

constexpr char kLateUri[] = "fake://polled_replies";

std::vector<std::string> PolledUris() {
  std::vector<std::string> uris = {kLateUri};
  if (transport::MakeTransport("verbs://").ok()) {
    uris.push_back("verbs://");
  }
  return uris;
}

class CudaPolledRepliesTest : public ::testing::TestWithParam<std::tuple<bool, std::string>> {
 protected:
  static bool ordered() { return std::get<0>(GetParam()); }
  static const std::string& uri() { return std::get<1>(GetParam()); }

  LocalClusterOptions Polled(const CudaCluster& wanted) {
    LocalClusterOptions options = OptionsOf(wanted, SmallModel());
    options.transports = {uri()};
    options.device_waits = true;
    options.other_compute.window_memory = &memory_;
    options.other_device.window_memory = &memory_;
    return options;
  }
  static void ExpectDeviceServed(LocalCluster& cluster) {
    EXPECT_EQ(
        WindowsOf(cluster, "c0"),
        absl::StrCat("memory of cuda:0 by peermem", uri() == kLateUri ? "" : " (dmabuf: none here)",
                     ordered() ? "" : ", flushed by a thread",
                     ", exchanged by cuda:0 emulation in steps of decode rows alone"));
    EXPECT_GT(cluster.handler("c0").Counters().device_units, 0u);
  }

  // At once, so that prompts join steps whose other rows decode.
  static std::vector<GenerateResult> Run(const LocalClusterOptions& options,
                                         std::unique_ptr<LocalCluster>& cluster) {
    cluster = MakeCluster(options);
    return cluster == nullptr ? std::vector<GenerateResult>() : cluster->GenerateMany(Requests());
  }
  void ExpectTheBitsOfHostWindows(const CudaCluster& wanted) {
    std::unique_ptr<LocalCluster> cluster;
    const std::vector<GenerateResult> expected = Run(OptionsOf(wanted, SmallModel()), cluster);
    ASSERT_NE(cluster, nullptr);
    cluster.reset();

    const std::vector<GenerateResult> found = Run(Polled(wanted), cluster);

    ASSERT_NE(cluster, nullptr);
    ExpectSame(found, expected);
    ExpectDeviceServed(*cluster);
    EXPECT_EQ(cluster->handler("c0").Counters().refused_messages, 0u);
  }
  static std::vector<coordinator::GenerateSpec> Requests() {
    std::vector<coordinator::GenerateSpec> requests = CudaRequests();
    requests.push_back(Greedy(RandomPrompt(5, 8), 12));
    return requests;
  }

  const std::shared_ptr<void> async_ = kernels::cuda::MakeStreamsAsync();
  const std::shared_ptr<transport::FakeNetwork> late_ = transport::FakeNetwork::Named(
      "polled_replies",
      {.seed = 17, .delay_steps_max = 4, .reaches_devices = true, .shows_memory = true});
  PolledMemory memory_{ordered()};
};

const CudaCluster kCompute = {.name = "Compute", .memory_nodes = 2, .lanes = 2};
const CudaCluster kBothEnds = {.name = "BothEnds", .cuda = {"c0", "m0"}};
// Each keeps its lane, and tells the other the tokens.
const CudaCluster kReplicas = {.name = "Replicas",
                               .cuda = {"c0", "c1"},
                               .compute_nodes = 2,
                               .lanes = 2,
                               .mode = PipelineMode::kFixed};

TEST_P(CudaPolledRepliesTest, HaveTheBitsOfWindowsInTheHostsMemory) {
  ExpectTheBitsOfHostWindows(kCompute);
}

TEST_P(CudaPolledRepliesTest, HaveTheBitsWhereMemoryNodesPollToo) {
  ExpectTheBitsOfHostWindows(kBothEnds);
}

TEST_P(CudaPolledRepliesTest, HaveTheBitsBesideAnotherReplica) {
  ExpectTheBitsOfHostWindows(kReplicas);
}

// Every step goes the host's way, which has the device copy out of its windows.
TEST_P(CudaPolledRepliesTest, RowsInPiecesHaveTheBitsOfWindowsInTheHostsMemory) {
  for (const uint32_t memory_nodes : {1u, 2u}) {
    SCOPED_TRACE(memory_nodes);
    const CudaCluster wanted = {.name = "Pieces",
                                .memory_nodes = memory_nodes,
                                .sub_batches = {.chunks = 2, .query_first = QueryFirst::kAlways}};
    std::unique_ptr<LocalCluster> cluster;
    const std::vector<GenerateResult> expected = Run(OptionsOf(wanted, SmallModel()), cluster);
    ASSERT_NE(cluster, nullptr);
    cluster.reset();

    const std::vector<GenerateResult> found = Run(Polled(wanted), cluster);

    ASSERT_NE(cluster, nullptr);
    ExpectSame(found, expected);
    EXPECT_EQ(cluster->handler("c0").Counters().device_units, 0u);
  }
}

TEST_P(CudaPolledRepliesTest, NodesLeaveAndComeWhileTheDevicePolls) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Polled({.name = "Compute"}));
  ASSERT_NE(cluster, nullptr);
  ExpectAnswersOutlive(*cluster, {"m0", "c0"});
  ExpectDeviceServed(*cluster);
}

// In mode b a thread lands what comes, for either role.
TEST_P(CudaPolledRepliesTest, TheTimelineShowsWhatLandingTakes) {
  using telemetry::TraceEvent;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Polled(kBothEnds));
  ASSERT_NE(cluster, nullptr);
  const Nanos began = RealClock().Now();
  for (const std::string name : {"c0", "m0"}) {
    cluster->ring(name).Start(began + Seconds(3600));
  }

  EXPECT_EQ(cluster->Generate(Greedy(RandomPrompt(9, 1), 12)).status, absl::OkStatus());

  for (const std::string name : {"c0", "m0"}) {
    SCOPED_TRACE(name);
    cluster->ring(name).Stop();
    uint64_t dropped = 0;
    size_t landings = 0;
    for (const TraceEvent& event : cluster->ring(name).Take(dropped)) {
      if (event.part == telemetry::WorkKind::kLand) {
        ++landings;
        EXPECT_EQ(event.peer, name == "c0" ? TraceEvent::kMemoryPeer : 0);
        EXPECT_EQ(event.lane, 0);
        EXPECT_GE(event.step, 1u);
        EXPECT_GE(event.start, began);
        EXPECT_LE(event.start, event.end);
        EXPECT_LE(event.end, RealClock().Now());
      }
    }
    EXPECT_EQ(landings > 0, !ordered());
  }
}

// Somebody writes headers of the past over those of the memory node, until one is there when
// somebody looks.
TEST_P(CudaPolledRepliesTest, AWindowOfAnOlderEpochIsRefusedAndCounted) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Polled({.name = "Compute"}));
  ASSERT_NE(cluster, nullptr);
  ExpectOldEpochIsRefused(*cluster, "c0", uri(), ReplyWindowOf);
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaPolledRepliesTest,
                         ::testing::Combine(::testing::Bool(), ::testing::ValuesIn(PolledUris())),
                         [](const auto& test) {
                           const std::string& uri = std::get<1>(test.param);
                           return absl::StrCat(std::get<0>(test.param) ? "Ordered" : "Flushed",
                                               "Over_", uri.substr(0, uri.find(':')));
                         });

}  // namespace
}  // namespace lamina::test_support
