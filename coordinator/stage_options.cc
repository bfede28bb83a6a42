// SPDX-License-Identifier: Apache-2.0
#include "coordinator/stage_options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "config/replicas.h"
#include "model/shard.h"
#include "model/splitter.h"

namespace lamina::coordinator {

absl::StatusOr<std::vector<double>> SliceCosts(const model::Graph& graph) {
  LAMINA_ASSIGN_OR_RETURN(const model::SplitModel split, model::SplitAtAttention(graph));
  std::vector<double> costs;
  for (const model::Slice& slice : split.slices) {
    double weights = 0;
    for (const model::OpId op : slice.ops) {
      weights += static_cast<double>(model::MatrixWeightsOfRow(graph, graph.ops[op]));
    }
    costs.push_back(weights);
  }
  return costs;
}

absl::StatusOr<plan::ShardCosts> ShardCostsOf(const model::Graph& graph) {
  LAMINA_ASSIGN_OR_RETURN(const model::ShardWidths widths, model::ShardWidthsOf(graph));
  return plan::ShardCosts{.heads = widths.heads,
                          .columns = widths.columns,
                          .head = widths.head_weights,
                          .column = widths.column_weights};
}

absl::Status SettleStages(const ClusterConfig& config, const model::Graph& graph,
                          EngineOptions& options) {
  const auto layers = static_cast<uint32_t>(options.layers.size());
  for (const ReplicaConfig& replica : ReplicasOf(config)) {
    const ComputeNodeConfig& last = config.compute[replica.nodes.back()];
    if (last.layers.has_value() && last.layers->last + 1 != layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("compute.", replica.nodes.back(), ".layers: '", last.layers->first, "-",
                       last.layers->last, "' is the last stage of replica '", replica.name,
                       "' and must end with layer ", layers - 1, ", the last of the model"));
    }
    if (const size_t stages = replica.nodes.size() / replica.shards; stages > layers) {
      return absl::InvalidArgumentError(absl::StrCat("compute: replica '", replica.name, "' has ",
                                                     stages, " stages; the model has ", layers,
                                                     " layers"));
    }
    if (replica.nodes.size() == 1) {
      continue;
    }
    ReplicaOptions added{.name = replica.name, .shards = replica.shards};
    for (const size_t index : replica.nodes) {
      const ComputeNodeConfig& node = config.compute[index];
      added.nodes.push_back(node.name);
      if (node.layers.has_value() && node.shard.value_or(0) == 0) {
        added.layers.push_back(node.layers->last + 1 - node.layers->first);
      }
      for (core::Member& member : options.nodes) {
        if (member.name == node.name) {
          member.replica = replica.name;
        }
      }
    }
    options.replicas.push_back(std::move(added));
  }
  if (!options.replicas.empty()) {
    LAMINA_ASSIGN_OR_RETURN(options.slice_costs, SliceCosts(graph));
  }
  for (const ReplicaOptions& replica : options.replicas) {
    if (replica.shards > 1) {
      LAMINA_ASSIGN_OR_RETURN(options.shard_costs, ShardCostsOf(graph));
      const std::vector<std::string> names(replica.shards);
      LAMINA_RETURN_IF_ERROR(plan::SplitShards(options.shard_costs, names).status());
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::coordinator
