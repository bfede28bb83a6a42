// SPDX-License-Identifier: Apache-2.0
//
// What the nodes of a cluster file must be for its arithmetic of attention. Whoever attends on
// tensor cores has them, and in pairs of bf16 is a processor: else a token would be attended in one
// arithmetic or the other, by where it happened to be.

#pragma once

#include "absl/status/status.h"
#include "config/cluster_config.h"

namespace lamina::internal {

// Errors: kInvalidArgument  attention on tensor cores with a node on the processor that would
//                           attend; in pairs of bf16 with one on CUDA.
//         kUnimplemented    pairs of bf16 with a policy that fetches.
absl::Status CheckAttention(const ClusterConfig& config);

}  // namespace lamina::internal
