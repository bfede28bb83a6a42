// SPDX-License-Identifier: Apache-2.0
//
// Step time of the policies that fetch K and V from memory nodes and attend on the compute node:
// one layer, with the next layer's transfer behind this layer's arithmetic.
//
// Sources: HeadInfer (alg. 1), KVPR (section 3), HybridServe (section 4), ALISA (section 4).
//
// Threading: pure.

#pragma once

#include "cost/estimate.h"
#include "cost/recompute_layer.h"

namespace lamina::cost {

// Seconds of one layer for all rows of a step.
struct FetchLayer {
  Estimate kv_transfer;  // All K and V over the link.
  // Over the link, the layer's inputs instead, from which K and V follow.
  Estimate activation_transfer;
  Estimate kv_generation;  // Computing all K and V from these inputs.
  Estimate dense;          // The layer's dense part.
  Estimate attention;      // Over all K and V, on the compute node.
  // The layer's weights over the same link, where they stream; several lanes: a lane's part.
  Estimate weights_transfer = {};
  // Policy fetch_recompute: share of the tokens whose activations stay on the compute node.
  double resident = 0;
};

struct FetchTime {
  Estimate layer;
  // Share of the tokens that are recomputed, held as activations, or attended; see each policy.
  double share = 0;
};

// All K and V cross the link in every step; heads are fetched while others attend.
FetchTime FetchHeads(const FetchLayer& layer);

// K and V of a share x of the tokens are computed again from their activations, for x up to
// `share_max` (prompts, in the paper's setting): the one that the policy chooses for a step, with
// dense layers and attention next to what is made again (recompute_layer.h). `share` is x.
FetchTime FetchRecompute(const FetchLayer& layer, double share_max, ActivationsCome come);

// A share x of the tokens is held as activations, chosen so that link and device are busy equally
// long. `share` is x.
FetchTime FetchHybrid(const FetchLayer& layer);

// Sparse windows: of a share r of the tokens, half are recent and stay on the device, half are
// fetched. Lossy. `share` is r, in (0, 1].
FetchTime FetchSparse(const FetchLayer& layer, double ratio);

}  // namespace lamina::cost
