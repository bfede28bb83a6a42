// SPDX-License-Identifier: Apache-2.0
//
// What the keys of a cluster file must be like for `kv: int8`.

#pragma once

#include "absl/status/status.h"
#include "config/cluster_config.h"

namespace lamina::internal {

// Errors: kInvalidArgument  a form that is named twice, or has no room next to the other one; a
//                           share of tokens that are to be held as activations, with int8.
//         kUnimplemented    int8 with policy auto, policies that fetch by partition token_range,
//                           attention in pairs or tiles, nodes on devices, or nodes for prompts;
//                           several forms with another policy than attend_remote, partition
//                           token_range, or replicas of several nodes.
absl::Status CheckKvForm(const ClusterConfig& config);

}  // namespace lamina::internal
