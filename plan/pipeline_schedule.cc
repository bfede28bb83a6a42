// SPDX-License-Identifier: Apache-2.0
#include "plan/pipeline_schedule.h"

#include <algorithm>

namespace lamina::plan {

PipelineSchedule::PipelineSchedule(PipelineMode mode, absl::Span<const Stage> nodes,
                                   uint32_t layers, uint32_t shard, const Prefill& prefill)
    : mode_(mode),
      replicas_(0),
      layers_(layers),
      prefill_lane_(prefill.lane),
      prefill_lanes_each_(prefill.lanes.each) {
  uint32_t all = 0;
  for (const Stage& node : nodes) {
    replica_of_.push_back(node.replica);
    all = std::max(all, node.replica + 1);
  }
  replicas_ = all - prefill.lanes.replicas;
  nodes_.resize(size_t{all} * (layers + 1));
  heads_.resize(all);
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    const uint32_t end = nodes[i].first_layer + nodes[i].layers;
    if (end == layers && nodes[i].shard.index == 0) {
      heads_[nodes[i].replica] = i;
    }
    if (nodes[i].shard.index != std::min(shard, nodes[i].shard.count - 1)) {
      continue;
    }
    for (uint32_t slice = nodes[i].first_layer; slice < (end == layers ? end + 1 : end); ++slice) {
      nodes_[nodes[i].replica * (layers + 1) + slice] = i;
    }
  }
}

uint32_t PipelineSchedule::ReplicaOf(uint32_t lane, uint64_t step, uint32_t slice,
                                     bool pinned) const {
  if (IsPrefillLane(lane)) {
    return PrefillReplicaOf(lane);
  }
  if (mode_ != PipelineMode::kRotational || pinned) {
    return lane % replicas_;
  }
  return static_cast<uint32_t>((lane + (step - 1) * layers_ + slice) % replicas_);
}

}  // namespace lamina::plan
