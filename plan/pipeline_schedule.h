// SPDX-License-Identifier: Apache-2.0
//
// PipelineSchedule: which compute node (replica) runs which slice of which lane. In which order a
// node runs what is ready is slice_order.h. Pure; all nodes compute the same.
//
// A unit is a slice with the attention after it: unit (step - 1) * layers + slice of its lane. The
// last slice of a step and slice 0 of the next belong to one unit, hence to one replica.
//
//   rotational   unit k of lane j runs on replica (j + k) mod R. With R + 1 lanes, slices of R time
//                units and attentions of one, unit k of lane j starts at j + k (R + 1): no replica
//                and no memory node ever has two units at once, or none.
//   fixed        lane j stays on replica j mod R and waits for its attention.
//   sequential   one lane, on replica 0.
//   apart        lane j is replica j mod R's alone, which has K and V of its sequences; no other
//   one
//                keeps the lane's tables.
//
// A replica is one compute node, or several that hold its layers in stages (stages.h): then a slice
// runs on the replica's node that has its layer. Such a replica works on several lanes at once, one
// on each stage and others in the pool of memory nodes. With n lanes a step of all of them takes no
// less than the longest of: n times the busiest stage's slices, n times a lane's attentions, and
// one lane's slices and attentions after each other. With lanes alike, two for each stage, it takes
// just that: one runs there while the other's attention is away.
//
// A pinned step (one with prompt chunks, whose earlier tokens lie in one replica's scratch) runs as
// a whole on the lane's home, replica j mod R, in every mode; on all its stages, if it has several.
//
// All shards of a replica or stage run the same slices. They hand what crosses from node to node to
// the ones of their own index; the schedule is made for one of these. The LM head is shard 0's.
//
// Replicas for prefill only (prefill.mode dedicated) come behind the others, and behind the lanes
// that rotate each has one or several lanes of its own (prefill_lanes.h), which have chunks only
// and stay on it. Its nodes have no part in other lanes; the replicas that decode keep the tables
// of all. It may have other stages and shards than these.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/pipeline_mode.h"
#include "plan/prefill_lanes.h"
#include "plan/stages.h"

namespace lamina::plan {

class PipelineSchedule {
 public:
  // Each lane from `prefill_lane` on is that of a prefill node.
  // Requires: replicas >= 1, layers >= 1.
  PipelineSchedule(PipelineMode mode, uint32_t replicas, uint32_t layers,
                   uint32_t prefill_lane = UINT32_MAX)
      : mode_(mode), replicas_(replicas), layers_(layers), prefill_lane_(prefill_lane) {}

  // The last nodes are for prefill only: those of so many replicas, from lane `lane` on.
  struct Prefill {
    uint32_t lane = UINT32_MAX;
    PrefillLanes lanes = {};
  };
  // Replicas of several nodes: nodes[i] is what compute node i runs. For shards of index `shard`;
  // a replica with fewer is asked for its last one. Requires: CheckStages(), CheckShards().
  PipelineSchedule(PipelineMode mode, absl::Span<const Stage> nodes, uint32_t layers,
                   uint32_t shard, const Prefill& prefill);
  PipelineSchedule(PipelineMode mode, absl::Span<const Stage> nodes, uint32_t layers,
                   uint32_t shard = 0)
      : PipelineSchedule(mode, nodes, layers, shard, Prefill()) {}

  uint32_t replicas() const { return replicas_; }  // Replicas that decode.

  bool IsPrefillLane(uint32_t lane) const { return lane >= prefill_lane_; }
  // Whether the replica of compute node `node` runs slices of the lane.
  bool Runs(uint32_t node, uint32_t lane) const {
    const uint32_t replica = ReplicaOfNode(node);
    if (IsPrefillLane(lane)) {
      return replica == PrefillReplicaOf(lane);
    }
    return mode_ == PipelineMode::kApart ? replica == lane % replicas_ : replica < replicas_;
  }
  // Whether it keeps the lane's tables: it gets its plans and reports its steps.
  bool TakesPart(uint32_t node, uint32_t lane) const {
    return (mode_ != PipelineMode::kApart && !IsPrefillNode(node)) || Runs(node, lane);
  }

  // The replica that runs `slice` (0 to layers) of `step` (from 1) of `lane`.
  uint32_t ReplicaOf(uint32_t lane, uint64_t step, uint32_t slice, bool pinned) const;

  // The compute node that does it.
  uint32_t NodeOf(uint32_t lane, uint64_t step, uint32_t slice, bool pinned) const {
    const uint32_t replica = ReplicaOf(lane, step, slice, pinned);
    return nodes_.empty() ? replica : nodes_[replica * (layers_ + 1) + slice];
  }

  // The one that runs the LM head behind the last slice, and samples.
  uint32_t HeadNodeOf(uint32_t lane, uint64_t step, bool pinned) const {
    const uint32_t replica = ReplicaOf(lane, step, layers_, pinned);
    return heads_.empty() ? replica : heads_[replica];
  }

  // When unit `unit` (from 0) of `lane` starts in the balanced rotational schedule, in units of
  // (slice time / replicas). Takes every value once over lanes 0 to replicas, from time 0 on.
  uint64_t StartOf(uint32_t lane, uint64_t unit) const { return lane + unit * (replicas_ + 1); }

 private:
  uint32_t ReplicaOfNode(uint32_t node) const {
    return replica_of_.empty() ? node : replica_of_[node];
  }
  bool IsPrefillNode(uint32_t node) const { return ReplicaOfNode(node) >= replicas_; }
  uint32_t PrefillReplicaOf(uint32_t lane) const {
    return replicas_ + (lane - prefill_lane_) / prefill_lanes_each_;
  }

  PipelineMode mode_;
  uint32_t replicas_;
  uint32_t layers_;
  uint32_t prefill_lane_ = UINT32_MAX;
  uint32_t prefill_lanes_each_ = 1;
  // Where replicas have several nodes; those for prompts too.
  std::vector<uint32_t> replica_of_;  // [nodes]
  std::vector<uint32_t> nodes_;       // [replicas, slices]
  std::vector<uint32_t> heads_;       // [replicas]
};

}  // namespace lamina::plan
