// SPDX-License-Identifier: Apache-2.0
//
// Clusters whose devices exchange rows by themselves over a network: what they send leaves by
// outboxes. Against the same clusters over shared memory where the host carries rows: the same
// tokens and log-probabilities to the bit. The network is fake://, late and disordered; where there
// is an RDMA device, verbs:// too.

#include <algorithm>
#include <iterator>
#include <tuple>

#include "tests/integration/cluster_test_util.h"
#include "tests/integration/cuda_cluster_util.h"
#include "tests/integration/waiting_device_faults.h"
#include "tests/unit/kernels/cuda/async_streams.h"
#include "transport/fake/fake_network.h"
#include "transport/registry.h"

namespace lamina::test_support {
namespace {

using testing::HasSubstr;

constexpr char kLateUri[] = "fake://far_waits";

std::vector<std::string> FarUris() {
  std::vector<std::string> uris = {kLateUri};
  if (transport::MakeTransport("verbs://").ok()) {
    uris.push_back("verbs://");
  }
  return uris;
}

class CudaFarWaitsTest : public ::testing::TestWithParam<std::tuple<CudaCluster, std::string>> {
 protected:
  static const CudaCluster& wanted() { return std::get<0>(GetParam()); }

  static LocalClusterOptions Far() {
    LocalClusterOptions options = OptionsOf(wanted(), SmallModel());
    options.transports = {std::get<1>(GetParam())};
    options.device_waits = true;
    return options;
  }
  static LocalClusterOptions Near() {
    LocalClusterOptions options = OptionsOf(wanted(), SmallModel());
    options.device_waits = false;
    return options;
  }
  static void ExpectDevicesServed(LocalCluster& cluster) {
    uint64_t memory_units = 0;
    for (const std::string& name : wanted().cuda) {
      EXPECT_THAT(
          WindowsOf(cluster, name),
          HasSubstr(name[0] == 'c' ? ", exchanged by cuda:0" : ", for which cuda:0 waits itself"));
      const telemetry::NodeCounters counters = cluster.handler(name).Counters();
      EXPECT_TRUE(counters.device_units > 0 || name[0] == 'm') << name;
      EXPECT_EQ(counters.refused_messages, 0u) << name;
      memory_units += name[0] == 'm' ? counters.device_units : 0;
    }
    EXPECT_TRUE(memory_units > 0 || wanted().cuda.back()[0] == 'c') << "whichever serves";
  }

  const std::shared_ptr<void> async_ = kernels::cuda::MakeStreamsAsync();
  const std::shared_ptr<transport::FakeNetwork> late_ = transport::FakeNetwork::Named(
      "far_waits", {.seed = 11, .delay_steps_max = 4, .shows_memory = true});
};

TEST_P(CudaFarWaitsTest, HasTheBitsOfRowsThatTheHostCarriesOverSharedMemory) {
  const std::vector<coordinator::GenerateSpec> requests = CudaRequests();
  std::vector<GenerateResult> expected;
  {
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(Near());
    ASSERT_NE(cluster, nullptr);
    for (const coordinator::GenerateSpec& spec : requests) {
      expected.push_back(cluster->Generate(spec));
    }
  }
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Far());
  ASSERT_NE(cluster, nullptr);

  std::vector<GenerateResult> found;
  for (const coordinator::GenerateSpec& spec : requests) {
    found.push_back(cluster->Generate(spec));
  }

  ExpectSame(found, expected);
  ExpectDevicesServed(*cluster);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

using telemetry::TraceEvent;
using telemetry::WorkKind;

std::vector<TraceEvent> Of(WorkKind kind, const std::vector<TraceEvent>& events) {
  std::vector<TraceEvent> found;
  std::copy_if(events.begin(), events.end(), std::back_inserter(found),
               [kind](const TraceEvent& event) { return event.part == kind; });
  return found;
}
auto UnitOf(const TraceEvent& event) { return std::tuple(event.lane, event.step, event.layer); }

TEST_P(CudaFarWaitsTest, TheTimelineShowsWhenRowsOfDevicesLeave) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Far());
  ASSERT_NE(cluster, nullptr);
  const Nanos began = RealClock().Now();
  for (const std::string& name : wanted().cuda) {
    cluster->ring(name).Start(began + Seconds(3600));
  }

  EXPECT_EQ(cluster->Generate(Greedy(RandomPrompt(9, 1), 12)).status, absl::OkStatus());

  size_t seen = 0;
  for (const std::string& name : wanted().cuda) {
    SCOPED_TRACE(name);
    telemetry::TraceRing& ring = cluster->ring(name);
    ring.Stop();
    uint64_t dropped = 0;
    const std::vector<TraceEvent> events = ring.Take(dropped);
    const std::vector<TraceEvent> posts = Of(WorkKind::kPost, events);
    const std::vector<TraceEvent> flights = Of(WorkKind::kInFlight, events);
    ASSERT_EQ(posts.size(), flights.size());
    seen += posts.size();
    for (size_t i = 0; i < posts.size(); ++i) {
      EXPECT_EQ(UnitOf(posts[i]), UnitOf(flights[i]));
      EXPECT_EQ(posts[i].peer & TraceEvent::kMemoryPeer,
                name[0] == 'c' ? TraceEvent::kMemoryPeer : 0);
      EXPECT_GE(posts[i].step, 1u);
      EXPECT_GT(posts[i].bytes, 0u);
      EXPECT_GE(posts[i].start, began);
      EXPECT_LE(posts[i].start, posts[i].end);
      EXPECT_EQ(posts[i].end, flights[i].start);
      EXPECT_LE(flights[i].start, flights[i].end);
      EXPECT_LE(flights[i].end, RealClock().Now());
    }
    for (const TraceEvent& wait : Of(WorkKind::kWaitAttention, events)) {
      EXPECT_NE(wait.peer, TraceEvent::kNoPeer);
    }
    const std::vector<TraceEvent> waits = Of(WorkKind::kDeviceWait, events);
    EXPECT_EQ(waits.empty(), name[0] == 'c' || posts.empty()) << "of units that it served";
    for (const TraceEvent& wait : waits) {
      EXPECT_EQ(wait.peer, 0) << "c0";
      EXPECT_GE(wait.step, 1u);
      EXPECT_LE(wait.start, wait.end);
    }
  }
  EXPECT_GT(seen, 0u);
}

// One end is on the device: in one process, windows are let go only when all of it stands still.
class CudaFarWaitsLeavingTest : public CudaFarWaitsTest {};

TEST_P(CudaFarWaitsLeavingTest, NodesLeaveAndComeWhileDevicesWait) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Far());
  ASSERT_NE(cluster, nullptr);
  ExpectAnswersOutlive(*cluster, {"m0", "c0"});
  ExpectDevicesServed(*cluster);
}

// Somebody writes headers of the past over those of the compute node, until one is there when a
// device looks.
class CudaFarWaitsStaleTest : public CudaFarWaitsTest {};

TEST_P(CudaFarWaitsStaleTest, AWindowOfAnOlderEpochIsRefusedAndCounted) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Far());
  ASSERT_NE(cluster, nullptr);
  const GenerateResult undisturbed = cluster->Generate(Greedy(RandomPrompt(9, 1), 40));
  ExpectOldEpochIsRefused(*cluster, "m0", std::get<1>(GetParam()), QueryWindowOf);
  ExpectSame({cluster->Generate(Greedy(RandomPrompt(9, 1), 40))}, {undisturbed});
}

const CudaCluster kMemory = {.name = "Memory", .cuda = {"m0"}};
const CudaCluster kCompute = {.name = "Compute", .cuda = {"c0"}};
const CudaCluster kBothEnds = {
    .name = "BothEnds", .cuda = {"c0", "m0", "m1"}, .memory_nodes = 2, .lanes = 2};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<CudaCluster, std::string>>& test) {
  const std::string& uri = std::get<1>(test.param);
  return absl::StrCat(std::get<0>(test.param).name, "Over_", uri.substr(0, uri.find(':')));
}

INSTANTIATE_TEST_SUITE_P(Clusters, CudaFarWaitsTest,
                         ::testing::Combine(::testing::Values(kMemory, kCompute, kBothEnds),
                                            ::testing::ValuesIn(FarUris())),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Clusters, CudaFarWaitsLeavingTest,
                         ::testing::Combine(::testing::Values(kMemory, kCompute),
                                            ::testing::ValuesIn(FarUris())),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Clusters, CudaFarWaitsStaleTest,
                         ::testing::Combine(::testing::Values(kMemory),
                                            ::testing::ValuesIn(FarUris())),
                         NameOf);

}  // namespace
}  // namespace lamina::test_support
