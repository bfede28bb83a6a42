// SPDX-License-Identifier: Apache-2.0
#include "memory_node/peer_regions.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "plan/epoch_shape.h"
#include "transport/put_all.h"

namespace lamina::memory_node {
namespace {

using Regions = std::vector<std::unique_ptr<transport::RemoteRegion>>;

// The peers of one role.
struct Role {
  const std::vector<std::string>& descriptors;
  const std::vector<std::string>& names;
  const std::vector<uint32_t>& opened;  // Indices of those whose regions are opened.
  transport::RegionSize least;
};

absl::StatusOr<Regions> Open(transport::Transport& transport, uint64_t epoch, const Role& role,
                             ThreadBeat* beat) {
  Regions regions(role.descriptors.size());
  for (const uint32_t peer : role.opened) {
    if (beat != nullptr) {
      beat->Raise();
    }
    auto opened = transport::OpenRegionOf(transport, role.descriptors[peer], epoch, role.least);
    if (!opened.ok()) {
      return control::TransportFault(control::Blame(opened.status(), role.names, peer));
    }
    regions[peer] = *std::move(opened);
  }
  return regions;
}

}  // namespace

absl::StatusOr<PeerRegions> OpenPeerRegions(transport::Transport& transport,
                                            const plan::EpochConfig& config, uint32_t node,
                                            const plan::EpochPeers& peers, ThreadBeat* beat) {
  const plan::WindowLayout layout(plan::WindowShapeOf(config));
  const plan::EpochNodes opens = plan::MemoryNodeView(config, node).opens();
  const Role compute = {.descriptors = peers.compute_regions,
                        .names = config.compute_nodes,
                        .opened = opens.compute,
                        .least = {.bytes = layout.reply_region_bytes(),
                                  .signal_words = layout.compute_region_words()}};
  if (peers.compute_regions.size() != config.compute_nodes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("epoch ", peers.epoch, " has regions of ",
                                                   peers.compute_regions.size(), " of ",
                                                   config.compute_nodes.size(), " compute nodes"));
  }
  PeerRegions opened;
  LAMINA_ASSIGN_OR_RETURN(opened.compute, Open(transport, config.epoch, compute, beat));
  if (config.attention_paths.fetch()) {
    LAMINA_ASSIGN_OR_RETURN(Regions pieces, Open(transport, config.epoch, compute, beat));
    opened.pieces = std::move(pieces.front());
  }
  LAMINA_ASSIGN_OR_RETURN(opened.memory,
                          Open(transport, config.epoch,
                               {.descriptors = peers.memory_regions,
                                .names = config.memory_nodes,
                                .opened = opens.memory,
                                .least = {.bytes = layout.query_region_bytes(),
                                          .signal_words = layout.query_region_words()}},
                               beat));
  return opened;
}

}  // namespace lamina::memory_node
