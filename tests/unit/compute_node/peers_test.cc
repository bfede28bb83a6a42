// SPDX-License-Identifier: Apache-2.0
#include "compute_node/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/shared_bus.h"
#include "control/blame.h"
#include "tests/unit/compute_node/exchange_nodes.h"
#include "transport/put_all.h"

namespace lamina::compute_node {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Two compute nodes and a memory node, each with a region of few bytes.
class PeersTest : public ::testing::Test {
 protected:
  void Make(const transport::FakeNetworkOptions& network, Nanos timeout = Seconds(60)) {
    network_ = std::make_unique<transport::FakeNetwork>(network);
    own_ = network_->MakeTransport();
    other_ = network_->MakeTransport();
    memory_ = network_->MakeTransport();
    other_region_ = *other_->CreateRegion({.name = "c0", .bytes = 64, .signal_words = 1});
    memory_region_ = *memory_->CreateRegion({.name = "m0", .bytes = 64, .signal_words = 1});
    peers_ = std::make_unique<Peers>(config_, 1, timeout, *own_, abort_, counters_);
    std::vector<std::unique_ptr<transport::RemoteRegion>> memory;
    memory.push_back(*own_->OpenRegion(memory_region_->Descriptor(), 0));
    std::vector<std::unique_ptr<transport::RemoteRegion>> compute;
    compute.push_back(*own_->OpenRegion(other_region_->Descriptor(), 0));
    compute.push_back(nullptr);
    peers_->Connect(std::move(memory), std::move(compute));
    ASSERT_TRUE(own_->RegisterSource(source_, transport::MemoryKind::kHost).ok());
  }

  telemetry::LinkCount LinkTo(const std::string& peer) const {
    const std::vector<telemetry::LinkCount> links = counters_.meter.Links();
    const auto found = std::find_if(links.begin(), links.end(),
                                    [&](const auto& link) { return link.peer == peer; });
    return found == links.end() ? telemetry::LinkCount() : *found;
  }

  std::vector<std::string> LinkNames() const {
    std::vector<std::string> names;
    for (const telemetry::LinkCount& link : counters_.meter.Links()) {
      names.push_back(link.peer);
    }
    return names;
  }

  plan::EpochConfig config_ = {.compute_nodes = {"c0", "c1"}, .memory_nodes = {"m0"}};
  std::unique_ptr<transport::FakeNetwork> network_;
  std::unique_ptr<transport::Transport> own_;
  std::unique_ptr<transport::Transport> other_;
  std::unique_ptr<transport::Transport> memory_;
  std::unique_ptr<transport::Region> other_region_;
  std::unique_ptr<transport::Region> memory_region_;
  transport::AbortWord abort_{0};
  StepCounters counters_;
  std::unique_ptr<Peers> peers_;  // Node c1's.
  const std::vector<std::byte> source_ = std::vector<std::byte>(16, std::byte{5});
};

TEST_F(PeersTest, HaveNamesAndRegionsByTheirRole) {
  Make({});

  EXPECT_EQ(peers_->compute_nodes(), 2u);
  EXPECT_EQ(peers_->memory_nodes(), 1u);
  EXPECT_EQ(peers_->Name(ComputePeer(0)), "c0");
  EXPECT_EQ(peers_->Name(ComputePeer(1)), "c1");
  EXPECT_EQ(peers_->Name(MemoryPeer(0)), "m0");
  EXPECT_NE(peers_->Region(ComputePeer(0)), nullptr);
  EXPECT_EQ(peers_->Region(ComputePeer(1)), nullptr) << "a node puts nothing to itself";
  EXPECT_NE(peers_->Region(MemoryPeer(0)), nullptr);
  EXPECT_THAT(LinkNames(), UnorderedElementsAre("c0", "m0"));
}

TEST_F(PeersTest, UnderPolicyLocalMemoryNodesHaveNoLinks) {
  config_.attention_paths = {plan::AttentionPath::kLocal};

  Make({});

  EXPECT_THAT(LinkNames(), IsEmpty()) << "c0 is another replica";
}

TEST_F(PeersTest, UnderPolicyLocalNodesOfTheReplicaHaveLinks) {
  config_.attention_paths = {plan::AttentionPath::kLocal};
  config_.stages = {{.first_layer = 0, .layers = 1}, {.first_layer = 1, .layers = 1}};

  Make({});

  EXPECT_THAT(LinkNames(), ElementsAre("c0"));
}

TEST_F(PeersTest, WhoIsGoneIsBlamedWithoutAPut) {
  Make({.delay_steps_max = 5});

  EXPECT_TRUE(peers_->CheckThere(MemoryPeer(0)).ok());
  EXPECT_TRUE(peers_->CheckThere(ComputePeer(1)).ok()) << "the node itself";
  EXPECT_FALSE(peers_->AnyPending());
  memory_region_.reset();

  const absl::Status gone = peers_->CheckThere(MemoryPeer(0));
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_EQ(control::BlamedIn(gone), "m0");
  EXPECT_TRUE(peers_->CheckThere(ComputePeer(0)).ok());
}

TEST_F(PeersTest, APutReachesThePeerThatItNames) {
  Make({.seed = 3, .delay_steps_max = 5});
  const transport::SignalUpdate signal{.word = 0, .value = 1};

  ASSERT_TRUE(peers_->Put(MemoryPeer(0), 32, source_, &signal).ok());

  EXPECT_TRUE(peers_->AnyPending());
  for (int step = 0; step < 20; ++step) {
    own_->Progress();
  }
  EXPECT_FALSE(peers_->AnyPending());
  EXPECT_EQ(memory_region_->LoadSignal(0), 1u);
  EXPECT_EQ(memory_region_->bytes()[31], std::byte{0});
  EXPECT_EQ(memory_region_->bytes()[32], std::byte{5});
  EXPECT_EQ(other_region_->LoadSignal(0), 0u);
}

TEST_F(PeersTest, WhatWaitsForAComputeNodeIsPendingToo) {
  Make({.seed = 3, .delay_steps_max = 5});

  ASSERT_TRUE(peers_->Put(ComputePeer(0), 0, source_, nullptr).ok());

  EXPECT_TRUE(peers_->AnyPending());
}

TEST_F(PeersTest, APutToAPeerThatIsGoneIsBlamedOnItAndCounted) {
  Make({});
  memory_region_.reset();

  const absl::Status put = peers_->Put(MemoryPeer(0), 0, source_, nullptr);

  EXPECT_EQ(put.code(), absl::StatusCode::kUnavailable) << put;
  EXPECT_EQ(control::BlamedIn(put), "m0");
  EXPECT_EQ(LinkTo("m0").failures, 1u);
  EXPECT_EQ(LinkTo("c0").failures, 0u);
}

TEST_F(PeersTest, APutThatDoesNotGetThroughEndsAtItsTimeout) {
  Make({.seed = 3, .delay_steps_max = UINT32_MAX, .in_flight_max = 1}, Millis(20));
  ASSERT_TRUE(peers_->Put(ComputePeer(0), 0, source_, nullptr).ok());

  const absl::Status put = peers_->Put(ComputePeer(0), 0, source_, nullptr);

  EXPECT_EQ(put.code(), absl::StatusCode::kDeadlineExceeded) << put;
  EXPECT_EQ(control::BlamedIn(put), "c0");
  EXPECT_EQ(LinkTo("c0").failures, 1u);
}

TEST_F(PeersTest, AnAbortEndsAPutAndIsNoFailureOfThePeer) {
  Make({.seed = 3, .delay_steps_max = UINT32_MAX, .in_flight_max = 1});
  ASSERT_TRUE(peers_->Put(ComputePeer(0), 0, source_, nullptr).ok());
  abort_.store(1);

  const absl::Status put = peers_->Put(ComputePeer(0), 0, source_, nullptr);

  EXPECT_EQ(put.code(), absl::StatusCode::kCancelled) << put;
  EXPECT_EQ(LinkTo("c0").failures, 0u);
}

TEST_F(PeersTest, WithoutRegionsNothingIsPending) {
  Make({.seed = 3, .delay_steps_max = 5});
  ASSERT_TRUE(peers_->Put(MemoryPeer(0), 0, source_, nullptr).ok());

  peers_->Disconnect();

  EXPECT_FALSE(peers_->AnyPending());
  EXPECT_EQ(peers_->compute_nodes(), 0u);
  EXPECT_EQ(peers_->memory_nodes(), 0u);
}

TEST_F(PeersTest, CountWhatGoesToEachAndWhatIsAwaitedOfEach) {
  Make({});

  peers_->CountSent(ComputePeer(0), {.rows = 100}, Millis(2));
  peers_->CountSent(MemoryPeer(0), {.rows = 30}, Millis(1));
  peers_->CountSent(MemoryPeer(0), {.kv = 40}, Millis(3));
  peers_->CountWait(MemoryPeer(0), Millis(5));

  EXPECT_EQ(counters_.bytes_sent.load(), 170u);
  EXPECT_EQ(LinkTo("c0").bytes, 100u);
  EXPECT_EQ(LinkTo("c0").puts, 1u);
  EXPECT_EQ(LinkTo("c0").waited_seconds, 0);
  EXPECT_EQ(LinkTo("m0").bytes, 70u);
  EXPECT_EQ(LinkTo("m0").puts, 2u);
  EXPECT_DOUBLE_EQ(LinkTo("m0").seconds, 4e-3);
  EXPECT_DOUBLE_EQ(LinkTo("m0").waited_seconds, 5e-3);
}

TEST_F(PeersTest, WhatGoesOverABusIsCountedByKind) {
  Make({});
  const auto bus = *SharedBus::Open(absl::StrCat("peers-", getpid()), 1'000'000);
  counters_.bus.Use(bus);

  peers_->CountSent(MemoryPeer(0), {.rows = 1, .kv = 20, .activations = 300}, Millis(2));
  peers_->CountSent(ComputePeer(0), {.rows = 4000}, Millis(1));

  EXPECT_THAT(bus->Totals().bytes, ElementsAre(20, 300, 0, 4001, 0));
  EXPECT_EQ(counters_.bytes_sent.load(), 4321u);
}

TEST_F(PeersTest, WaitsForALinkAreToldToWhoBoundsIt) {
  config_.lanes = 1;
  Make({});
  telemetry::FetchedBandwidth& link = peers_->Fetched(0);
  uint64_t come = 0;
  Nanos now = Seconds(1);
  const auto use = [&](Nanos waited) {
    for (int piece = 0; piece < 100; ++piece, ++come) {  // A MiB in 10 ms each.
      link.Look(now, {&come, 1});
      link.Expect(0, {.sure = come, .possible = come + 2});
      link.Count(size_t{1} << 20);
      peers_->CountWait(MemoryPeer(0), waited);
      now += Millis(10);
    }
  };
  use(0);
  EXPECT_GT(link.unbounded_seconds(), 0);
  use(Millis(5));
  EXPECT_EQ(link.unbounded_seconds(), 0);
}

TEST_F(PeersTest, AnExchangeIsCountedIfItTookTime) {
  Make({});

  peers_->CountExchange(MemoryPeer(0), Seconds(100), Seconds(100), 1000);
  EXPECT_EQ(LinkTo("m0").exchange_seconds, 0);
  peers_->CountExchange(MemoryPeer(0), Seconds(100), Seconds(100) + Millis(2), 1000);
  peers_->CountExchange(MemoryPeer(0), Seconds(101), Seconds(101) + Millis(4), 8000);

  EXPECT_DOUBLE_EQ(LinkTo("m0").exchange_seconds, 2e-3);
  EXPECT_DOUBLE_EQ(LinkTo("m0").exchange_bytes_per_second, 2e6);
}

TEST_F(PeersTest, AnEpochBeginsWithoutTheExchangesOfTheOneBefore) {
  Make({});
  peers_->CountExchange(MemoryPeer(0), 0, Millis(2), 1000);
  peers_->CountSent(MemoryPeer(0), {.rows = 30}, Millis(1));

  Make({});

  EXPECT_EQ(LinkTo("m0").exchange_seconds, 0) << "the transport may be another one";
  EXPECT_EQ(LinkTo("m0").bytes, 30u) << "bytes count on";
}

TEST_F(PeersTest, AnEpochBeginsWithoutWhatWasFetchedInTheOneBefore) {
  config_.lanes = 1;
  Make({});
  peers_->Fetched(0).Expect(0, {.sure = 2, .possible = 2});
  EXPECT_TRUE(peers_->Fetched(0).MayCome());

  Make({});

  EXPECT_FALSE(peers_->Fetched(0).MayCome());
}

TEST_F(PeersTest, AWindowAsItMustBeIsTaken) {
  Make({});
  const plan::WindowHeader header{.lane = 1, .epoch = 7, .step = 3, .rows = 2};

  EXPECT_TRUE(peers_->CheckWindow(MemoryPeer(0), header, header).ok());

  EXPECT_EQ(counters_.refusals.total(), 0u);
}

TEST_F(PeersTest, AnyOtherWindowIsCountedAndBlamedOnItsSender) {
  Make({});
  const plan::WindowHeader expected{.lane = 1, .epoch = 7, .step = 3, .rows = 2};
  plan::WindowHeader header = expected;
  header.rows = 3;

  const absl::Status checked = peers_->CheckWindow(ComputePeer(0), header, expected);

  EXPECT_EQ(checked.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(checked.message(), "window header: rows 3 where the plan says 2");
  EXPECT_EQ(control::BlamedIn(checked), "c0");
  EXPECT_THAT(counters_.refusals.ByReason(), ::testing::Contains(::testing::Pair("rows", 1u)));
  EXPECT_EQ(counters_.refusals.total(), 1u);
}

TEST_F(PeersTest, AWaitInVainIsBlamedOnWhomItWasFor) {
  Make({});

  const absl::Status status = peers_->NothingFrom(MemoryPeer(0), Millis(1500));

  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "nothing from m0 for 1.5 s");
  EXPECT_EQ(control::BlamedIn(status), "m0");
}

}  // namespace
}  // namespace lamina::compute_node
