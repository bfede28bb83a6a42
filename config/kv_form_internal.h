// SPDX-License-Identifier: Apache-2.0
//
// What the keys of a cluster file must be like for `kv: int8`.

#pragma once

#include "absl/status/status.h"
#include "config/cluster_config.h"

namespace lamina::internal {

// Errors: kUnimplemented  int8 with another policy than attend_remote, fetch_heads, fetch_sparse
//                         and local, partition token_range, nodes on devices, or nodes for prompts.
absl::Status CheckKvForm(const ClusterConfig& config);

}  // namespace lamina::internal
