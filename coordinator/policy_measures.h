// SPDX-License-Identifier: Apache-2.0
//
// PolicyMeasures: what the nodes that are there have measured for policy auto, and what of a
// replica each compute node runs; and what follows from it whatever the load.
//
// Threading: plain values.   Determinism: pure functions.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/attached_nodes.h"
#include "coordinator/core/membership.h"
#include "coordinator/engine_options.h"
#include "coordinator/replica_splits.h"
#include "cost/policy_step.h"
#include "plan/policy_times.h"
#include "plan/stages.h"

namespace lamina::coordinator {

// A compute node that is there.
struct MeasuredNode {
  std::string name = {};
  plan::Stage stage;        // What it runs; all layers where it is a replica alone.
  plan::PolicyTimes times;  // What it has measured of that.
  uint64_t capacity = 0;    // Bytes for K and V.
};

struct PolicyMeasures {
  std::vector<MeasuredNode> compute;        // Stage after stage of one replica after the other.
  std::map<std::string, double> bandwidth;  // Bytes a second of each memory node that is there.
  std::map<std::string, double> attention;  // Bytes of K and V a second, of those that say.
  double link = 0;  // Bytes a second over all links to memory nodes; 0: not measured of late.
  cost::PartLink
      parts;  // The slowest link within a replica; 0 bytes a second: not measured of late.
  uint64_t memory = 0;          // Bytes for K and V of all memory nodes that are there,
  uint64_t largest_memory = 0;  // and of the one that has most.
};

PolicyMeasures MeasuresOf(const core::Membership& membership, const AttachedNodes& nodes,
                          const ReplicaSplits& splits);

// Measures as they were where compute nodes' reads were slow, and where they were fast; empty where
// no node has seen them differ. Nodes that have not are in both as they are, and so is what memory
// nodes have measured.
std::vector<PolicyMeasures> EndsOf(const PolicyMeasures& measures);

// What the compute node whose reads differed most has seen of them: "c0 read 37.0 to 63.1 GB/s
// while it was measured". Empty where none has said.
std::string DescribeReads(const PolicyMeasures& measures);

// The replicas, at so much context: of a layer with a window no more of it is read.
// Requires: measures.compute as MeasuresOf() has it; context > 0.
std::vector<cost::MeasuredReplica> ReplicasOf(const PolicyMeasures& measures,
                                              const std::vector<AttentionDescriptor>& layers,
                                              double context);

// Tokens whose K and V replicas have room for, each node for those of its layers and heads. Nodes
// without capacity do not count.
struct LocalRoom {
  double tokens = 0;         // Room of all replicas together,
  double least = 0;          // and of the replica with the least,
  std::string least_node{};  // whose node with the least this is. Empty: none has any.
};
LocalRoom LocalRoomOf(const PolicyMeasures& measures,
                      const std::vector<AttentionDescriptor>& layers);

// Which share of what its threads read a compute node reaches in attention: of the one that attends
// slowest. 1 where nothing is known. Requires: compute not empty.
double AttendedShare(const PolicyMeasures& measures);

}  // namespace lamina::coordinator
