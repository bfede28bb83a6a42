// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_recompute (KVPR, kvpr.txt 3): K and V of the first l of s tokens are computed again
// from their activations, while K and V of the other s - l are on the link: as many as the least
// time of a layer has, by the equations of cost/recompute_layer.h.
//
// Where an activation has as many bytes as K and V (grouped queries), nothing is gained: l = 0. Nor
// is by activations that stay, since K and V of as many tokens have room in the same bytes, and
// none of these has to be made: r = 0 then.
//
// Threading: pure functions.

#pragma once

#include <cstdint>
#include <string>

#include "cost/recompute_layer.h"

namespace lamina::policy {

struct RecomputeSplit {
  uint64_t recomputed = 0;  // l
  double seconds = 0;       // t(l)
};

// The l in [0, tokens] with the least t(l); of several the least.
// Requires: profile.kv + profile.make > 0.
RecomputeSplit BestRecomputeSplit(const cost::RecomputeProfile& profile, uint64_t tokens,
                                  cost::ActivationsCome come);

// For people: "38% of tokens recomputed: a token's K and V take 2.1 us on the link, its activation
// 1.0 us, making them 1.3 us, and the layer's weights 310 us", or why none are.
std::string DescribeRecompute(const cost::RecomputeProfile& profile, double share);

}  // namespace lamina::policy
