// SPDX-License-Identifier: Apache-2.0
//
// Clusters whose devices exchange rows by themselves over a network: what they send leaves by
// outboxes. Against the same clusters over shared memory where the host carries rows: the same
// tokens and log-probabilities to the bit. The network is fake://, late and disordered; where there
// is an RDMA device, verbs:// too.

#include <algorithm>
#include <cstring>
#include <iterator>
#include <tuple>

#include "plan/epoch_shape.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/integration/cuda_cluster_util.h"
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
  const GenerateResult undisturbed = cluster->Generate(Greedy(RandomPrompt(9, 1), 40));
  for (const std::string leaves : {"m0", "c0"}) {
    SCOPED_TRACE(leaves);
    const auto request = cluster->Start(Greedy(RandomPrompt(9, 1), 40));
    request->WaitForTokens(3);

    cluster->Detach(leaves);
    request->Wait();
    cluster->Attach(leaves);

    ASSERT_TRUE(cluster->WaitForState("serving").ok());
    ExpectSame({cluster->Generate(Greedy(RandomPrompt(9, 1), 40))}, {undisturbed});
  }
  ExpectDevicesServed(*cluster);
}

// Somebody writes headers of the past over those of the compute node, until one is there when a
// device looks.
class CudaFarWaitsStaleTest : public CudaFarWaitsTest {};

TEST_P(CudaFarWaitsStaleTest, AWindowOfAnOlderEpochIsRefusedAndCounted) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Far());
  ASSERT_NE(cluster, nullptr);
  const GenerateResult undisturbed = cluster->Generate(Greedy(RandomPrompt(9, 1), 40));
  const plan::EpochConfig config = cluster->link("m0").config();
  const plan::WindowLayout layout(plan::WindowShapeOf(config));
  const auto transport = transport::MakeTransport(std::get<1>(GetParam())).value();
  const auto region = transport->OpenRegion(cluster->link("m0").region(), config.epoch).value();
  const plan::WindowHeader stale{.epoch = config.epoch - 1, .step = 1, .sender = 0};
  std::vector<std::byte> source(sizeof(stale));
  std::memcpy(source.data(), &stale, sizeof(stale));
  ASSERT_TRUE(transport->RegisterSource(source, transport::MemoryKind::kHost).ok());
  const auto request = cluster->Start(Greedy(RandomPrompt(9, 1), 600));
  request->WaitForTokens(3);

  uint64_t value = layout.SignalValue(1'000'000, 0);
  absl::Status put;
  const Nanos end = RealClock().Now() + LocalCluster::kTimeout;
  while ((put.ok() || absl::IsResourceExhausted(put)) && RealClock().Now() < end &&
         cluster->engine().GetStatus().epoch == config.epoch) {
    value += plan::kSubBatchesMax;
    const transport::SignalUpdate signal{.word = layout.query_word(0, 0), .value = value};
    put = transport->Put(*region, layout.QueryWindow(0, 0, value), source, &signal);
    transport->Progress();
  }

  ASSERT_TRUE(cluster->WaitForEpoch(config.epoch + 1).ok());
  cluster->Cancel(*request);
  request->Wait();
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  EXPECT_GT(cluster->handler("m0").Counters().refused_messages, 0u);
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
