// SPDX-License-Identifier: Apache-2.0
//
// HeadInfer's formula of a device's memory (policy/fetch_heads.h, A.3) for a compute node in an
// epoch as it is, to stand next to what the node accounts for (NodeMemory).
//
// The context is the longest sequence, with partition token_range a span, since spans come one by
// one; the group is the largest for which windows have room, and a chunk all rows of a step. Lanes
// and memory nodes have windows of their own, and lanes rows of their own, where the paper has one
// of each. Weights are those that the node holds.
//
// Threading: a pure function.

#pragma once

#include <cstdint>

#include "model/model_config.h"
#include "plan/epoch_config.h"
#include "telemetry/node_counters.h"

namespace lamina::compute_node {

// Zeros: the epoch fetches no K and V, or as INT8, or it keeps activations; the formula knows
// neither of these.   Requires: what plan::CheckFetch() checks.
telemetry::FormulaMemory FormulaOf(const plan::EpochConfig& config, const model::ModelConfig& model,
                                   uint64_t weights);

}  // namespace lamina::compute_node
