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
#include "plan/epoch_config.h"
#include "plan/window_layout.h"
#include "transport/transport.h"

namespace lamina::memory_node {

// By index among the nodes of their role; null: not opened.
struct PeerRegions {
  std::vector<std::unique_ptr<transport::RemoteRegion>> compute;
  std::vector<std::unique_ptr<transport::RemoteRegion>> memory;
};

// Whether memory node `node` writes into the region of a compute node: all ask it, or measure their
// links to it.
bool WritesToCompute(const plan::EpochConfig& config, uint32_t node, uint32_t compute_node);
// Whether it writes into the region of another memory node. No attention path has it yet; one whose
// K and V move between memory nodes says here which of them are peers.
bool WritesToMemory(const plan::EpochConfig& config, uint32_t node, uint32_t memory_node);

// Errors: as transport::OpenRegionOf(), blamed on the peer, and marked as the transport's.
absl::StatusOr<PeerRegions> OpenPeerRegions(transport::Transport& transport,
                                            const plan::EpochConfig& config, uint32_t node,
                                            const plan::EpochPeers& peers);

}  // namespace lamina::memory_node
