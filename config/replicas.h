// SPDX-License-Identifier: Apache-2.0
//
// Which compute nodes of the cluster file hold a model replica together, in stages and shards.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "config/cluster_config.h"

namespace lamina {

struct ReplicaConfig {
  std::string name;           // The node's name, if it is a replica by itself.
  std::vector<size_t> nodes;  // Indices into `compute`, sorted by stage, then by shard.
  uint32_t shards = 1;        // Shards of each stage.
};

// The replicas in the order in which the file names their first node. Of a file that
// CheckReplicas() refuses, the stages are in any order.
std::vector<ReplicaConfig> ReplicasOf(const ClusterConfig& config);

// Shards of each stage, the same in every replica that decodes. The file is one that
// CheckReplicas() accepts.
uint32_t ShardsOf(const ClusterConfig& config);

// How many lanes compute nodes that keep K and V have (policy local, and auto where that is
// chosen), unless the file of policy local names another number: one for each replica, or for each
// stage of it, since attention is never away; one for each replica where weights come from a file.
uint32_t LanesOfLocal(const ClusterConfig& config);

// Whether the replica is for prefill only.
bool IsForPrompts(const ClusterConfig& config, const ReplicaConfig& replica);

// Whether the node is one of several of a replica.
bool IsStage(const ClusterConfig& config, const ComputeNodeConfig& node);

// Errors: kInvalidArgument  a stage or shard without a replica, one that is missing or there twice,
// layers of some stages only, layers that overlap or leave some out, or that differ between the
// shards of a stage; replicas that decode of different numbers of shards; one with nodes for
// prompts and others.
absl::Status CheckReplicas(const ClusterConfig& config);

// "0-14" or "3". Errors: kInvalidArgument.
absl::StatusOr<LayerRange> ParseLayers(absl::string_view text);

}  // namespace lamina
