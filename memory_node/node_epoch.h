// SPDX-License-Identifier: Apache-2.0
//
// NodeEpoch: what a memory node's sources share in an epoch, and what follows from it alone.
//
// Threading: made and connected before the data thread starts; `abort` is raised by any thread.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/attention_descriptor.h"
#include "common/clock.h"
#include "control/blame.h"
#include "kernels/kv_device.h"
#include "memory_node/bytes_under_way.h"
#include "memory_node/lane.h"
#include "memory_node/peer_regions.h"
#include "memory_node/worker_counters.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_ring.h"
#include "plan/pipeline_schedule.h"
#include "plan/window_layout.h"
#include "transport/transport.h"

namespace lamina::memory_node {

struct NodeEpoch {
  struct Devices {
    kernels::KvDevice& kv;
    kernels::KvDevice* int8 = nullptr;  // With path remote_int8: of the slots of that path.
  };
  // References must outlive this.
  NodeEpoch(const plan::EpochConfig& epoch_config, uint32_t own_index, Nanos deadline,
            transport::Transport& epoch_transport, transport::Region& own_region,
            const Devices& devices, WorkerCounters& worker_counters);

  // The compute node that runs a slice of the lane's step, among those of a shard.
  uint32_t RunnerOf(uint32_t shard, const Lane& lane, uint32_t slice) const {
    return schedules[shard].NodeOf(lane.index, lane.step, slice, lane.pinned);
  }
  bool by_span() const { return config.partition == Partition::kTokenRange; }
  const std::string& NameOf(uint32_t compute_node) const {
    return config.compute_nodes[compute_node];
  }
  // What no compute node is to be blamed for, as a device that fails or a plan that cannot be: it
  // counts as this node's own. One that names a node already keeps it.
  absl::Status OwnFault(absl::Status why) const {
    return control::Blame(std::move(why), config.memory_nodes, node);
  }
  // Where pieces of K and V go: the only compute node's region.
  transport::RemoteRegion& pieces_to() const {
    return peers.pieces != nullptr ? *peers.pieces : *peers.compute[0];
  }
  // The first signal value behind the lane's step: it belongs to none of its units.
  uint64_t StepEnd(const Lane& lane) const {
    return layout.SignalValue(lane.step, layout.layer_count() - 1) + 1;
  }

  const plan::EpochConfig config;
  const uint32_t node;        // Own index among the memory nodes.
  const Nanos peer_deadline;  // Longest wait inside a started unit, and for a window's plan.
  const std::vector<AttentionDescriptor> layers;  // Over the heads that are here.
  const uint32_t activation_width;  // Elements of a token's activation that are kept here.
  const plan::WindowLayout layout;
  const std::vector<plan::PipelineSchedule> schedules;  // By shard.
  transport::Transport& transport;
  transport::Region& region;  // The own query windows.
  kernels::KvDevice& device;
  kernels::KvDevice* const int8_device;  // Null without path remote_int8.
  WorkerCounters& counters;
  bool checks_data = false;  // Windows of K and V get checksums (data_checks.h).
  // Puts may read K and V where the device has them (kernels::KvReads::memory()).
  bool puts_arena = false;
  // The pieces of K and V that have left in the epoch, by lane: sources that send them share the
  // windows (piece_stream.h). Of the data thread.
  mutable std::vector<plan::FetchRing> pieces_sent;
  // How large their puts were. Of the data thread.
  mutable BytesUnderWay pieces_under_way;
  PeerRegions peers;  // Until the epoch's end: sources of puts are read as long.
  transport::AbortWord abort{0};
};

}  // namespace lamina::memory_node
