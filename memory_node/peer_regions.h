// SPDX-License-Identifier: Apache-2.0
//
// Whose regions a memory node opens in an epoch. It follows from the topology, so that every node
// knows it of every other.
//
// Threading: before the data thread starts.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/thread_beat.h"
#include "plan/epoch_config.h"
#include "plan/window_layout.h"
#include "transport/transport.h"

namespace lamina::memory_node {

// By index among the nodes of their role; null: not opened.
struct PeerRegions {
  std::vector<std::unique_ptr<transport::RemoteRegion>> compute;
  std::vector<std::unique_ptr<transport::RemoteRegion>> memory;
  // A second view of the only compute node's, by which pieces of K and V go: what it counts as
  // under way is theirs alone. Null: none are sent.
  std::unique_ptr<transport::RemoteRegion> pieces;
};

// Opens those that plan::MemoryNodeView::opens() names, and `pieces` in an epoch that sends some,
// with a beat before each.
// Errors: as transport::OpenRegionOf(), blamed on the peer, and marked as the transport's.
absl::StatusOr<PeerRegions> OpenPeerRegions(transport::Transport& transport,
                                            const plan::EpochConfig& config, uint32_t node,
                                            const plan::EpochPeers& peers,
                                            ThreadBeat* beat = nullptr);

}  // namespace lamina::memory_node
