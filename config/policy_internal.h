// SPDX-License-Identifier: Apache-2.0
//
// What the keys of a cluster file must be like for its policy.

#pragma once

#include "absl/status/status.h"
#include "config/cluster_config.h"

namespace lamina::internal {

// Errors: kInvalidArgument  memory nodes under policy local, or none under auto; capacity of a
//                           compute node under attend_remote, or none under the others; a partition
//                           or lanes that need memory nodes; no core for compute next to memory
//                           nodes; a load for auto that cannot be, or under another policy.
//         kUnimplemented    policy local, auto or fetch_heads with several compute nodes; the
//                           last with spans of sequences.
absl::Status CheckPolicy(const ClusterConfig& config);

}  // namespace lamina::internal
