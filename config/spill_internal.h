// SPDX-License-Identifier: Apache-2.0
//
// What the keys of a cluster file must be like for memory.N.spill.

#pragma once

#include "absl/status/status.h"
#include "config/cluster_config.h"

namespace lamina::internal {

// Errors: kInvalidArgument  a path without a capacity or the reverse; partition head with the file
//                           on some nodes alone.
//         kUnimplemented    with another policy than attend_remote or fetch_heads, several forms of
//                           kv, partition token_range with kv int8, nodes on devices, or nodes for
//                           prompts.
absl::Status CheckSpill(const ClusterConfig& config);

}  // namespace lamina::internal
