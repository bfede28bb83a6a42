// SPDX-License-Identifier: Apache-2.0
//
// What the keys of a cluster file must be like for its policy.

#pragma once

#include "absl/status/status.h"
#include "common/config/cluster_config.h"

namespace lamina::internal {

// Errors: kInvalidArgument  memory nodes under policy local, or capacity of a compute node under
//                           another; no capacity; a partition or lanes that need memory nodes.
//         kUnimplemented    policy local with several compute nodes.
absl::Status CheckPolicy(const ClusterConfig& config);

}  // namespace lamina::internal
