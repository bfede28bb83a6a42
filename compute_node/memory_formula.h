// SPDX-License-Identifier: Apache-2.0
//
// The formulas of the papers for a device's memory, for a compute node in an epoch as it is, to
// stand next to what the node accounts for (NodeMemory):
//
//   HeadInfer    K and V come by groups of heads (policy/fetch_heads.h, A.3)
//   KVPR         all heads of a layer come, and path recompute makes some K and V of activations
//   HybridServe  all heads of a layer come, in slots of two kinds (both: policy/layer_buffers.h)
//
// Where no activations are kept, under whichever policy, K and V come by groups of heads. Of
// several policies the paper is that of the one that keeps activations, since windows have room for
// these.
//
// The context is the longest sequence, with partition token_range a span, since spans come one by
// one; a group is the largest for which windows have room, and a chunk all rows of a step. Lanes
// and memory nodes have windows of their own, and lanes rows of their own, where the papers have
// one of each. Weights are those that the node holds. Where K and V are INT8 they are so in
// windows, and those of the open block bf16.
//
// Threading: a pure function.

#pragma once

#include <cstdint>

#include "model/model_config.h"
#include "plan/epoch_config.h"
#include "telemetry/node_counters.h"

namespace lamina::compute_node {

// None: the epoch fetches no K and V, or makes some of token numbers, which no formula knows.
// Requires: what plan::CheckFetch() checks.
telemetry::FormulaMemory FormulaOf(const plan::EpochConfig& config, const model::ModelConfig& model,
                                   uint64_t weights);

}  // namespace lamina::compute_node
