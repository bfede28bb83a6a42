// SPDX-License-Identifier: Apache-2.0
//
// Which compute nodes of the cluster file hold a model replica together, in stages.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/cluster_config.h"

namespace lamina {

struct ReplicaConfig {
  std::string name;           // Of the node, if it is one by itself.
  std::vector<size_t> nodes;  // Indices into `compute`, by stage.
};

// The replicas in the order in which the file names their first node. Of a file that
// CheckReplicas() refuses, the stages are in any order.
std::vector<ReplicaConfig> ReplicasOf(const ClusterConfig& config);

// Whether the node is one of several of a replica.
bool IsStage(const ClusterConfig& config, const ComputeNodeConfig& node);

// Errors: kInvalidArgument  a stage without a replica, one that is missing or there twice, layers
// of some stages only, or layers that overlap or leave some out.
absl::Status CheckReplicas(const ClusterConfig& config);

// "0-14" or "3". Errors: kInvalidArgument.
absl::StatusOr<LayerRange> ParseLayers(absl::string_view text);

}  // namespace lamina
