// SPDX-License-Identifier: Apache-2.0
//
// The compute nodes of an epoch, and which of them reports which step.

#include "tests/sim/sim_world.h"

namespace lamina::sim {

void SimWorld::ChangeReplicas() {
  if (sim_.pool) {
    return ChangePool();
  }
  replicas_ = 1 + static_cast<uint32_t>(replicas_random_.Below(4));
  const bool one_replica = replicas_random_.Chance(0.3);  // Whose nodes these are.
  stages_.clear();
  for (uint32_t i = 0; i < (one_replica ? 1 : replicas_); ++i) {
    AddReplica(one_replica ? replicas_ : 1, stages_random_.Chance(0.5));
  }
  for (uint32_t i = 0; i < prefill_lanes_.replicas; ++i) {
    // One at least has as many stages as there are lanes.
    const auto fewer = static_cast<uint32_t>(1 + stages_random_.Below(prefill_lanes_.each));
    AddReplica(i == 0 ? prefill_lanes_.each : fewer, stages_random_.Chance(0.5));
  }
  HaveReplicas(PipelineMode::kRotational);
}

void SimWorld::HaveReplicas(PipelineMode mode) {
  schedule_.emplace(
      mode, stages_, kLayers, 0,
      plan::PipelineSchedule::Prefill{.lane = workload_.options.lanes, .lanes = prefill_lanes_});
  reports_.Reset(static_cast<uint32_t>(stages_.size()), static_cast<uint32_t>(links_.size()),
                 *schedule_);
  for (LaneLink& link : links_) {
    link.report_arrivals.assign(stages_.size(), 0);
  }
}

void SimWorld::AddReplica(uint32_t nodes, bool shards) {
  const uint32_t replica = stages_.empty() ? 0 : stages_.back().replica + 1;
  for (uint32_t i = 0; i < nodes; ++i) {
    plan::Stage node{.replica = replica, .layers = kLayers};
    if (shards) {
      node.shard = {.index = i, .count = nodes};
    } else {
      node.first_layer = i;
      node.layers = i + 1 == nodes ? kLayers - i : 1;
    }
    stages_.push_back(node);
  }
}

}  // namespace lamina::sim
