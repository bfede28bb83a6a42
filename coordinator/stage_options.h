// SPDX-License-Identifier: Apache-2.0
//
// From the cluster file and the model to the engine's options of replicas with stages and shards.

#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/cluster_config.h"
#include "coordinator/engine_options.h"
#include "model/graph.h"

namespace lamina::coordinator {

// Weights of the linear layers of each slice: what a row costs there. Errors: those of the
// splitter.
absl::StatusOr<std::vector<double>> SliceCosts(const model::Graph& graph);

// What shards share out. Errors: those of ShardWidthsOf().
absl::StatusOr<plan::ShardCosts> ShardCostsOf(const model::Graph& graph);

// Fills in replicas, their nodes' membership, slice_costs and shard_costs; nothing without stages
// and shards.
// Errors: kInvalidArgument  layers that the model does not have, or that are left out at its end;
//                           more stages than layers; more shards than KV heads or MLP columns.
//         kUnimplemented    shards of a model whose layers have unlike widths.
absl::Status SettleStages(const ClusterConfig& config, const model::Graph& graph,
                          EngineOptions& options);

}  // namespace lamina::coordinator
