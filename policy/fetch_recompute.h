// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_recompute (KVPR, kvpr.txt 3): K and V of the first l of s tokens are computed again
// from their activations, while K and V of the other s - l are on the link: as many as the least
// time of a layer has,
//
//   min over l of t(l), with 0 <= l <= s                                 (11)
//
// where t(l) is (10) of the paper, with attention and dense layers, which it leaves out: they take
// the same device. It stands in cost/recompute_layer.h, with the equations before it. The paper's l
// is at most the prompt's length; here generated tokens have activations too, and s counts them.
//
// Rows are cut to whole tiles of their tokens, so that not every l can be had: of the sequences of
// a step together only multiples of some number, and all.
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

// The l with the least t(l) of all multiples of `grain` in [0, tokens], and of `tokens`; of several
// the least.
// Requires: profile.kv + profile.make > 0; grain > 0.
RecomputeSplit BestRecomputeSplit(const cost::RecomputeProfile& profile, uint64_t tokens,
                                  cost::ActivationsCome come, uint64_t grain = 1);

// For people: "38% of tokens recomputed: K and V of one take 2.1 us on the link, its activation 1.0
// us, making them 1.3 us, the layer's weights 310 us, and attention and dense layers 810 us of a
// layer", or why none are.
std::string DescribeRecompute(const cost::RecomputeProfile& profile, double share);

}  // namespace lamina::policy
