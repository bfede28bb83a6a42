// SPDX-License-Identifier: Apache-2.0
//
// What the keys of a cluster file must be like where weights come from a store, are packed, or are
// quantised.

#pragma once

#include "absl/status/status.h"
#include "config/cluster_config.h"

namespace lamina::internal {

// Whether some compute node has a weights_budget.
bool StreamsWeights(const ClusterConfig& config);

// Errors: kInvalidArgument  a store, or a number of layers ahead, without a budget; packed or int8
// weights in f32;
//                           int8 on some compute nodes alone.
//         kUnimplemented    with a budget several compute nodes, a device, policies auto and
//                           fetch_sparse; packed or int8 weights with a budget or a device.
absl::Status CheckWeights(const ClusterConfig& config);

}  // namespace lamina::internal
