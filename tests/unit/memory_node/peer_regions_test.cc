// SPDX-License-Identifier: Apache-2.0
#include "memory_node/peer_regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "control/blame.h"
#include "control/transport_fault.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

TEST(PeerRegionsTest, AreThoseOfAllComputeNodesAndOfNoMemoryNode) {
  UnitCluster cluster({.compute_nodes = 2, .memory_nodes = 2, .mode = PipelineMode::kRotational});

  ThreadBeat beat;
  const auto regions =
      OpenPeerRegions(cluster.transport_of(0), cluster.config(), 0, cluster.Descriptors(), &beat);

  ASSERT_TRUE(regions.ok()) << regions.status();
  EXPECT_EQ(beat.beats(), 2u);
  ASSERT_EQ(regions->compute.size(), 2u);
  EXPECT_NE(regions->compute[0], nullptr);
  EXPECT_NE(regions->compute[1], nullptr);
  ASSERT_EQ(regions->memory.size(), 2u);
  EXPECT_EQ(regions->memory[0], nullptr);
  EXPECT_EQ(regions->memory[1], nullptr);
}

// Whose puts are counted by themselves.
TEST(PeerRegionsTest, HaveAViewForPiecesWhereSomeAreSent) {
  for (const bool sends : {false, true}) {
    UnitCluster cluster({.lanes = 2, .fetch_bytes = sends ? uint64_t{1} << 20 : 0});

    ThreadBeat beat;
    const auto regions =
        OpenPeerRegions(cluster.transport_of(0), cluster.config(), 0, cluster.Descriptors(), &beat);

    ASSERT_TRUE(regions.ok()) << regions.status();
    EXPECT_EQ(regions->pieces != nullptr, sends);
    EXPECT_EQ(beat.beats(), sends ? 2u : 1u);
  }
}

TEST(PeerRegionsTest, ThatCannotBeOpenedAreBlamedOnTheirNode) {
  UnitCluster cluster({.compute_nodes = 2, .mode = PipelineMode::kRotational});
  plan::EpochPeers peers = cluster.Descriptors();
  peers.compute_regions[1] = "no descriptor";

  const auto regions = OpenPeerRegions(cluster.transport_of(0), cluster.config(), 0, peers);

  EXPECT_EQ(regions.status().code(), absl::StatusCode::kInvalidArgument) << regions.status();
  EXPECT_EQ(control::BlamedIn(regions.status()), "c1");
  EXPECT_TRUE(control::IsTransportFault(regions.status()));
}

TEST(PeerRegionsTest, OfSomeComputeNodesAloneAreRefused) {
  UnitCluster cluster({.compute_nodes = 2, .mode = PipelineMode::kRotational});
  plan::EpochPeers peers = cluster.Descriptors();
  peers.compute_regions.pop_back();

  const auto regions = OpenPeerRegions(cluster.transport_of(0), cluster.config(), 0, peers);

  EXPECT_EQ(regions.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(regions.status().message(), "epoch 7 has regions of 1 of 2 compute nodes");
}

TEST(PeerRegionsTest, ThatAreTooSmallAreRefused) {
  UnitCluster cluster({});
  const auto small = cluster.MakeTransport();
  const auto region = *small->CreateRegion(
      {.name = "small", .bytes = 64, .signal_words = 1, .epoch = UnitCluster::kEpoch});
  plan::EpochPeers peers = cluster.Descriptors();
  peers.compute_regions[0] = region->Descriptor();

  const auto regions = OpenPeerRegions(cluster.transport_of(0), cluster.config(), 0, peers);

  EXPECT_EQ(regions.status().code(), absl::StatusCode::kFailedPrecondition) << regions.status();
  EXPECT_EQ(control::BlamedIn(regions.status()), "c0");
}

}  // namespace
}  // namespace lamina::memory_node
