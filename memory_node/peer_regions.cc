// SPDX-License-Identifier: Apache-2.0
#include "memory_node/peer_regions.h"

#include <string>
#include <utility>

#include "common/status_macros.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "plan/epoch_shape.h"
#include "transport/put_all.h"

namespace lamina::memory_node {
namespace {

using Regions = std::vector<std::unique_ptr<transport::RemoteRegion>>;

// Those of one role that are written to.
struct Role {
  const std::vector<std::string>& descriptors;
  const std::vector<std::string>& names;
  transport::RegionSize least;
  bool (*writes)(const plan::EpochConfig& config, uint32_t node, uint32_t peer);
};

absl::StatusOr<Regions> Open(transport::Transport& transport, const plan::EpochConfig& config,
                             uint32_t node, const Role& role) {
  Regions regions(role.descriptors.size());
  for (uint32_t peer = 0; peer < regions.size(); ++peer) {
    if (!role.writes(config, node, peer)) {
      continue;
    }
    auto opened =
        transport::OpenRegionOf(transport, role.descriptors[peer], config.epoch, role.least);
    if (!opened.ok()) {
      return control::TransportFault(control::Blame(opened.status(), role.names, peer));
    }
    regions[peer] = *std::move(opened);
  }
  return regions;
}

}  // namespace

bool WritesToCompute(const plan::EpochConfig&, uint32_t, uint32_t) { return true; }

bool WritesToMemory(const plan::EpochConfig&, uint32_t, uint32_t) { return false; }

absl::StatusOr<PeerRegions> OpenPeerRegions(transport::Transport& transport,
                                            const plan::EpochConfig& config, uint32_t node,
                                            const plan::EpochPeers& peers) {
  const plan::WindowLayout layout(plan::WindowShapeOf(config));
  PeerRegions opened;
  LAMINA_ASSIGN_OR_RETURN(opened.compute,
                          Open(transport, config, node,
                               {.descriptors = peers.compute_regions,
                                .names = config.compute_nodes,
                                .least = {.bytes = layout.reply_region_bytes(),
                                          .signal_words = layout.compute_region_words()},
                                .writes = WritesToCompute}));
  LAMINA_ASSIGN_OR_RETURN(opened.memory,
                          Open(transport, config, node,
                               {.descriptors = peers.memory_regions,
                                .names = config.memory_nodes,
                                .least = {.bytes = layout.query_region_bytes(),
                                          .signal_words = layout.query_region_words()},
                                .writes = WritesToMemory}));
  return opened;
}

}  // namespace lamina::memory_node
