// SPDX-License-Identifier: Apache-2.0
//
// Which policies `policy: auto` weighs, as far as the cluster file and the model tell: what each
// asks of an epoch, or what it would be refused for by itself.
//
// Determinism: a pure function, but for a warning in the log.

#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "config/cluster_config.h"
#include "coordinator/engine_options.h"
#include "model/graph.h"
#include "model/model_config.h"

namespace lamina::coordinator {

// All exact policies, and the lossy one with the reason that it is not taken, in the order in which
// those as fast as each other are taken.
// Errors: kFailedPrecondition  the cluster can have none of them; each with its reason.
// Requires: a cluster file of policy auto that is valid.
absl::StatusOr<std::vector<WeighedPolicy>> WeighPolicies(const ClusterConfig& config,
                                                         const model::Graph& graph,
                                                         const model::ModelConfig& model);

}  // namespace lamina::coordinator
