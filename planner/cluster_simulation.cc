// SPDX-License-Identifier: Apache-2.0
#include "planner/cluster_simulation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "config/replicas.h"
#include "planner/scheduler_options.h"
#include "planner/sim_cell.h"

namespace lamina::planner {
namespace {

using cost::KvPolicy;

absl::StatusOr<KvPolicy> PolicyOf(const ClusterConfig& config) {
  if (config.policies.size() > 1) {
    return absl::UnimplementedError(absl::StrCat("policies: ", config.policies.size(),
                                                 " policies of one cluster are not simulated; name "
                                                 "attend_remote or local alone"));
  }
  if (config.policy == kPolicyLocal) {
    return KvPolicy::kLocal;
  }
  if (config.policy == kPolicyAttendRemote) {
    return KvPolicy::kAttendRemote;
  }
  return absl::UnimplementedError(absl::StrCat("policy: '", config.policy,
                                               "' is not simulated; set it to attend_remote or "
                                               "local"));
}

template <typename Node>
absl::Status CheckCapacities(absl::string_view key, const std::vector<Node>& nodes) {
  for (const Node& node : nodes) {
    if (node.capacity_bytes != nodes.front().capacity_bytes) {
      return absl::UnimplementedError(absl::StrCat(key, ": ", nodes.front().name, " and ",
                                                   node.name,
                                                   " differ in capacity, which is not simulated"));
    }
  }
  return absl::OkStatus();
}

// Replicas, stages and shards of `config`, in `cluster`, whose policy is there.
absl::Status CountNodes(const ClusterConfig& config, cost::Cluster& cluster) {
  const std::vector<ReplicaConfig> replicas = ReplicasOf(config);
  cluster.replicas = 0;
  for (const ReplicaConfig& replica : replicas) {
    const auto nodes = static_cast<uint32_t>(replica.nodes.size());
    if (nodes != replicas.front().nodes.size() || replica.shards != replicas.front().shards) {
      return absl::UnimplementedError(
          absl::StrCat("compute: replicas ", replicas.front().name, " and ", replica.name,
                       " differ in stages or shards, which is not simulated"));
    }
    (IsForPrompts(config, replica) ? cluster.prompt_replicas : cluster.replicas) += 1;
    cluster.shards = replica.shards;
    cluster.stages = nodes / replica.shards;
  }
  LAMINA_RETURN_IF_ERROR(CheckCapacities("memory", config.memory));
  if (cluster.policy == KvPolicy::kLocal) {
    LAMINA_RETURN_IF_ERROR(CheckCapacities("compute", config.compute));
  }
  cluster.memory_nodes = static_cast<uint32_t>(config.memory.size());
  return absl::OkStatus();
}

// Each replica that keeps K and V has lanes and sequences of its own, as a cell has.
void TakeReplicasForCells(SimFleet& fleet) {
  cost::Cluster& cluster = fleet.cell.cluster;
  core::SchedulerOptions& scheduler = fleet.cell.scheduler;
  fleet.cells = cluster.replicas;
  for (uint32_t* limit : {&scheduler.lanes, &scheduler.running_max, &scheduler.waiting_max}) {
    *limit = (*limit + fleet.cells - 1) / fleet.cells;
  }
  cluster.lanes = scheduler.lanes;
  cluster.replicas = 1;
}

// Which part of a token's K and V the node keeps that keeps most of it, where stages and shards
// keep those of their own layers and heads alone: it is full first.
double GreatestPart(const cost::ModelShape& shape, const cost::Cluster& cluster) {
  const std::vector<uint32_t> layers = LayersOfStages(shape, cluster.stages);
  const double heads = std::ceil(cost::Real(shape.kv_heads) / cluster.shards);
  return cost::Real(*std::max_element(layers.begin(), layers.end())) / shape.layers * heads /
         shape.kv_heads;
}

template <typename Node>
double PriceOf(const std::vector<Node>& nodes) {
  double price = 0;
  for (const Node& node : nodes) {
    price += node.price_per_hour;
  }
  return nodes.empty() ? 0 : price / static_cast<double>(nodes.size());
}

}  // namespace

absl::StatusOr<SimFleet> FleetOfClusterFile(const ClusterConfig& config,
                                            const cost::ModelShape& shape,
                                            const ClusterDevices& devices,
                                            const SimFailures& failures) {
  SimFleet fleet;
  SimCellSpec& cell = fleet.cell;
  cell.shape = shape;
  cell.failures = failures;
  cost::Cluster& cluster = cell.cluster;
  if (config.KeepsInt8()) {
    return absl::UnimplementedError(
        "kv: int8 is not simulated by this version; simulate the cluster with kv bf16");
  }
  LAMINA_ASSIGN_OR_RETURN(cluster.policy, PolicyOf(config));
  LAMINA_RETURN_IF_ERROR(CountNodes(config, cluster));
  if (cluster.stages > shape.layers) {
    return absl::InvalidArgumentError(absl::StrCat("compute: a replica of ", cluster.stages,
                                                   " stages wants a model of as many layers; ",
                                                   shape.name, " has ", shape.layers));
  }
  cluster.compute = devices.compute;
  cluster.memory = devices.memory;
  cluster.compute_link = devices.link;
  cluster.memory_link = devices.link;
  cluster.shard_link = devices.shard_link;
  cluster.partition = config.partition == Partition::kAuto ? Partition::kRequest : config.partition;
  cell.scheduler = SchedulerOptionsOf(config, shape);
  cluster.lanes = cell.scheduler.lanes;
  const bool local = cluster.policy == KvPolicy::kLocal;
  const uint64_t capacity =
      local ? config.compute.front().capacity_bytes : config.memory.front().capacity_bytes;
  const double token_bytes = shape.KvBytesPerToken() * (local ? GreatestPart(shape, cluster) : 1);
  cell.kv_tokens = static_cast<uint64_t>(static_cast<double>(capacity) / token_bytes);
  if (cell.kv_tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat("capacity: ", capacity,
                                                   " bytes hold no token of ", shape.name,
                                                   ", which takes ", token_bytes, " bytes"));
  }
  if (local) {
    TakeReplicasForCells(fleet);
  }
  cell.compute_price = PriceOf(config.compute);
  cell.memory_price = PriceOf(config.memory);
  return fleet;
}

}  // namespace lamina::planner
