// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_recompute, alone or one of several: what the cluster file asks of an epoch and of
// the scheduler, from activations or from token numbers; of the activations that stay on the
// compute node too, also those of fetch_hybrid.
//
// Threading: pure functions.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "config/cluster_config.h"
#include "coordinator/engine_options.h"

namespace lamina::coordinator {

// Has the options recompute, by activations of so many elements.
// Requires: layers, and limits of the scheduler.
void UseRecompute(const ClusterConfig& config, uint32_t width, EngineOptions& options);

// Has the options recompute from token numbers, as the cluster file says. Requires: layers.
void UseTokens(const ClusterConfig& config, EngineOptions& options);

// Policy auto: where an epoch may make K and V again, a step's plan says of how many tokens.
// Requires: options.policy_auto has the policies that are weighed.
void UsePlanningOfAuto(EngineOptions& options);

// Policy fetch_hybrid: the activations that stay, where the cluster file has bytes for some.
// Requires: as UseRecompute(); options.fetch has the policy, and the width of its activations.
void UseResidentOfHybrid(const ClusterConfig& config, EngineOptions& options);

// Errors: kUnimplemented  fetch_hybrid would hold activations of this model by its own choice, and
// compute nodes make them in f32. One that is told how many is refused with the cluster file.
absl::Status CheckActivationType(const ClusterConfig& config, const EngineOptions& options);

// Errors: kInvalidArgument  fetch.resident has no room for a tile of each running sequence's
// tokens.
absl::Status CheckResidentActivations(const ClusterConfig& config, const EngineOptions& options);

}  // namespace lamina::coordinator
