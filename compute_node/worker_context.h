// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/clock.h"
#include "common/thread_pool.h"
#include "compute_node/intervals.h"
#include "compute_node/lane.h"
#include "compute_node/own_windows.h"
#include "compute_node/peers.h"
#include "compute_node/sequence_table.h"
#include "compute_node/slice_executor.h"
#include "compute_node/step_counters.h"
#include "control/node_handler.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_ring.h"
#include "plan/pipeline_schedule.h"
#include "plan/window_layout.h"
#include "transport/transport.h"

namespace lamina::compute_node {

// Whether memory nodes get some columns of every row, and not whole rows.
inline bool ByHead(const plan::EpochConfig& config) { return config.partition == Partition::kHead; }

// Whether they get the rows of whose sequences they have a span.
inline bool BySpan(const plan::EpochConfig& config) {
  return config.partition == Partition::kTokenRange;
}

// The pieces of K and V that have been given back in the epoch, [lanes][memory nodes]: paths that
// fetch share the windows (piece_windows.h).
using PiecesTaken = std::vector<std::vector<plan::FetchRing>>;

// What the parts of a worker share in an epoch, and what follows from that alone.
struct WorkerContext {
  const plan::EpochConfig& config;  // As the node's shard works with it.
  const uint32_t node;              // Own index among the compute nodes.
  const plan::WindowLayout layout;
  const plan::PipelineSchedule schedule;
  const Nanos peer_deadline;  // Longest wait for a peer.
  SliceExecutor& executor;
  ThreadPool& pool;
  transport::Transport& transport;
  transport::Region& region;  // The own windows,
  WindowReader& windows;      // as the processor reads them.
  Peers& peers;
  SequenceTable& sequences;
  Intervals& intervals;
  StepCounters& counters;
  PiecesTaken& pieces_taken;

  bool Runs(const Lane& lane) const { return schedule.Runs(node, lane.index); }

  // The compute node that runs a slice of the lane's step, and the one whose tokens end the step.
  uint32_t NodeOf(const Lane& lane, uint32_t slice) const {
    return schedule.NodeOf(lane.plan.lane, lane.plan.step, slice, lane.pinned);
  }
  uint32_t TailNodeOf(const Lane& lane) const {
    return schedule.HeadNodeOf(lane.plan.lane, lane.plan.step, lane.pinned);
  }

  // Signal value of the attention after `slice`.
  uint64_t UnitValue(const Lane& lane, uint32_t slice) const {
    return layout.SignalValue(lane.plan.step, slice);
  }

  HeadRange HeadsOf(uint32_t layer, uint32_t memory_node) const {
    return plan::HeadsOf(config, config.layers[layer], memory_node);
  }
  // The layer as a memory node computes it.
  AttentionDescriptor PartOf(uint32_t layer, uint32_t memory_node) const {
    return lamina::PartOf(config.layers[layer], HeadsOf(layer, memory_node));
  }

  // Puts a whole message to a compute node: one put, timed as `part` of the lane's slice.
  // Errors: as Peers::Put().
  absl::Status Tell(const Lane& lane, PeerId peer, telemetry::WorkKind part, size_t offset,
                    absl::Span<const std::byte> message,
                    const transport::SignalUpdate& signal) const;

  // Header of what compute node `sender` tells others about the lane's step.
  plan::WindowHeader HeaderOf(const Lane& lane, uint32_t slice, uint32_t rows,
                              uint32_t sender) const {
    return {.lane = lane.index,
            .epoch = config.epoch,
            .step = lane.plan.step,
            .layer = slice,
            .rows = rows,
            .sender = sender};
  }
};

}  // namespace lamina::compute_node
