// SPDX-License-Identifier: Apache-2.0
//
// Where K and V lie: on compute nodes, or on memory nodes and how these share them out, as the
// cluster file says it or `auto` decides it.
//
// Threading: pure functions.

#pragma once

#include "absl/status/status.h"
#include "config/cluster_config.h"
#include "coordinator/engine_options.h"

namespace lamina::coordinator {

// Whether compute nodes keep K and V in some epoch.
bool KeepsKvOnCompute(const ClusterConfig& config);

// Decides on the partition, and refuses one that cannot be served, by what the cluster file alone
// tells: bandwidths are not known yet.
// Errors: kInvalidArgument     a partition by head of layers with unlike or too few KV heads; by
//                              `auto`, with a spill on some memory nodes and not on others.
//         kUnimplemented       `auto` chose one that is not served with what the file asks for.
//         kFailedPrecondition  a memory node, or all of them, have too little room; under `auto`,
//                              that none can be served, and why.
// Requires: layers, K and V's form, the policies, fetching, and limits of the scheduler.
absl::Status SettlePartition(const ClusterConfig& config, EngineOptions& options);

}  // namespace lamina::coordinator
