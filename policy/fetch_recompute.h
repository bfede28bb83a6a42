// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_recompute (KVPR, kvpr.txt 3): K and V of the first l of s tokens are computed again
// from their activations, which come first, while K and V of the other s - l are on the link.
//
//   t(l) = A l + max(F l, K (s - l))        column by column: activations cross the link too
//
// with A, K the seconds that the link needs for the activation, or for K and V, of one token, and F
// those that the device needs to make K and V of one. t falls up to the kink l = K s / (F + K) if A
// < K, and grows behind it, so that the best integer is next to the kink, or at an end.
//
// Where an activation has as many bytes as K and V (grouped queries), nothing is gained: l = 0.
//
// Threading: pure functions.

#pragma once

#include <cstdint>
#include <string>

namespace lamina::policy {

// What one token takes in one layer, in seconds.
struct RecomputeProfile {
  double activation = 0;  // A
  double kv = 0;          // K
  double make = 0;        // F
};

// t(l).  Requires: recomputed <= tokens.
double RecomputeSeconds(const RecomputeProfile& profile, uint64_t tokens, uint64_t recomputed);

struct RecomputeSplit {
  uint64_t recomputed = 0;  // l
  double seconds = 0;       // t(l)
};

// The l in [0, tokens] with the least t(l); of several the least.
// Requires: profile.kv + profile.make > 0.
RecomputeSplit BestRecomputeSplit(const RecomputeProfile& profile, uint64_t tokens);

// For people: "38% of tokens recomputed: a token's K and V take 2.1 us on the link, its activation
// 1.0 us, making them 1.3 us", or why none are.
std::string DescribeRecompute(const RecomputeProfile& profile, double share);

}  // namespace lamina::policy
