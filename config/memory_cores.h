// SPDX-License-Identifier: Apache-2.0
//
// Which cores the nodes of one host share, by the cluster file: with policy auto a compute node may
// name those of memory nodes too, and leaves them to these while KV is there.

#pragma once

#include <string>
#include <vector>

#include "config/cluster_config.h"

namespace lamina {

// A compute node's cores, each list in the order of the file.
struct SplitCores {
  std::vector<int> own;     // Cores that no memory node of its host names.
  std::vector<int> shared;  // The other cores.
};
SplitCores SplitCoresOf(const ClusterConfig& config, const ComputeNodeConfig& node);

// Memory nodes that share cores with each other, directly or by way of others, or a device of their
// host. One on processors that names none is by itself.
struct MemoryCores {
  std::vector<std::string> names;
  bool shared = false;  // On processors: some of the cores are the compute node's.
};
std::vector<MemoryCores> MemoryCoresOf(const ClusterConfig& config, const ComputeNodeConfig& node);

}  // namespace lamina
