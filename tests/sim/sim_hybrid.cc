// SPDX-License-Identifier: Apache-2.0
//
// Worlds whose memory nodes have slots that are of path hybrid alone, next to those of other paths,
// each a share of its own: who asks for which path.

#include <vector>

#include "tests/sim/sim_world.h"

namespace lamina::sim {

std::vector<core::MemoryNodeShare> WithHybridApart(std::vector<core::MemoryNodeShare> nodes) {
  using plan::AttentionPath;
  std::vector<core::MemoryNodeShare> shares;
  for (const plan::AttentionPaths paths :
       {plan::AttentionPaths{AttentionPath::kRemote, AttentionPath::kFetch},
        plan::AttentionPaths{AttentionPath::kHybrid}}) {
    for (core::MemoryNodeShare& node : nodes) {
      node.paths = paths;
      node.activation_share = paths.Has(AttentionPath::kHybrid) ? 512 : 0;
      shares.push_back(node);
    }
  }
  return shares;
}

// Forks ask for what their parents do. Some requests name no path, which is the remote one.
void KeepHybridApart(Prng random, SimWorkload& workload) {
  core::SchedulerOptions& options = workload.options;
  options.prefill_lanes = {};
  options.resident_path = plan::AttentionPath::kHybrid;
  options.memory_nodes = WithHybridApart(options.memory_nodes);
  for (SimArrival& arrival : workload.arrivals) {
    for (core::SequenceRequest& request : arrival.requests) {
      if (request.fork_of != 0) {
        request.path = (&request - 1)->path;
      } else if (random.Chance(0.5)) {
        request.path = plan::AttentionPath::kHybrid;
      } else if (random.Chance(0.8)) {
        request.path =
            random.Chance(0.5) ? plan::AttentionPath::kRemote : plan::AttentionPath::kFetch;
      }
    }
  }
}

}  // namespace lamina::sim
