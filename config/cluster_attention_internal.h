// SPDX-License-Identifier: Apache-2.0
//
// What the nodes of a cluster file must be for its arithmetic of attention. Whoever attends on
// tensor cores has them: else a token would be attended in one arithmetic or the other, by where it
// happened to be.

#pragma once

#include "absl/status/status.h"
#include "config/cluster_config.h"

namespace lamina::internal {

// Errors: kInvalidArgument  attention on tensor cores with a node on the processor that would
//                           attend.
absl::Status CheckAttention(const ClusterConfig& config);

}  // namespace lamina::internal
