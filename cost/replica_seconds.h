// SPDX-License-Identifier: Apache-2.0
//
// ReplicaSeconds: how long a lane of decode rows takes on a model replica that one or several
// compute nodes hold, in stages and shards, by what each has measured of what it runs.
//
// Stage s runs the slices of its layers (slice 0, the little before the first attention, is left
// out), and the last one the end of the step. Its shards run them side by side and sum parts of
// rows behind each attention and MLP (kReducesOfLayer). So for a lane of r rows, of which shard i
// reads kv(i) bytes of K and V where it attends itself:
//
//   stage(s) = max over i of [slices * slice(i, r) + tail(i, r) + kv(i) / attention(i)]
//              + 2 * (slices, and one for the tail) * way(r)      with several shards
//   path     = sum over s of stage(s) + stages * way(r)           with several stages
//   way(r)   = latency + (shards - 1, or 1 between stages) * r * row bytes / bandwidth
//
// A replica of one node has one stage and one shard: slices, the tail and attention alone.
//
// Determinism: pure functions of their arguments.

#pragma once

#include <cstdint>
#include <vector>

#include "plan/policy_times.h"

namespace lamina::cost {

// What one compute node of a replica has measured.
struct ReplicaPart {
  plan::PolicyTimes times;
  // Bytes of K and V that a row reads of its layers and heads, a token of its context.
  double kv_bytes_per_token = 0;
};

// Nodes that run the same layers side by side.
struct ReplicaStage {
  std::vector<ReplicaPart> shards;  // One: the stage has all heads and columns.
  uint32_t slices = 0;              // Slices like those measured that a step runs.
  bool tail = false;                // It ends with the LM head.
};

struct MeasuredReplica {
  std::vector<ReplicaStage> stages;

  bool whole() const { return stages.size() == 1 && stages.front().shards.size() == 1; }
};

// One stage of all layers, on one node.
MeasuredReplica WholeReplica(const plan::PolicyTimes& times, uint32_t layers,
                             double kv_bytes_per_token);

// The way between two nodes of a replica.
struct PartLink {
  double latency_seconds = 0;
  double bytes_per_second = 0;  // 0: nothing is known of it.
  double row_bytes = 0;         // Bytes of a row's part of a sum, and of its residual.
};

// What a step of one lane takes.
struct LaneSeconds {
  double dense = 0;  // Slices, the tail, and ways between nodes.
  double attention = 0;

  double seconds() const { return dense + attention; }
};

struct ReplicaSeconds {
  LaneSeconds path;     // Through all stages.
  LaneSeconds busiest;  // In the stage that takes longest.
};

// By straight lines between the sizes that were measured, and on beyond the last one.
// Requires: times not empty, rows > 0.
plan::SliceTimes TimesOf(const std::vector<plan::SliceTimes>& times, double rows);

// A lane whose rows attend on the replica, with all threads of its nodes.
// Requires: at least one stage, each of at least one shard, all measured; with several nodes a link
// of bytes_per_second > 0; rows > 0.
ReplicaSeconds AttendingSeconds(const MeasuredReplica& replica, const PartLink& link, double rows,
                                double context);

// A lane whose rows attend elsewhere, with the threads that nodes have together with memory nodes.
// Requires: as AttendingSeconds().
ReplicaSeconds DenseSeconds(const MeasuredReplica& replica, const PartLink& link, double rows);

}  // namespace lamina::cost
