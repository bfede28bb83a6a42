// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_recompute (KVPR, kvpr.txt 3): K and V of the first l of s tokens are computed again
// from their activations, which come first, while K and V of the other s - l are on the link.
//
//   t(l) = A l + max(F l, W + K (s - l))        one lane (1); activations cross the link too
//   t(l) = max(W + A l + K (s - l), F l)        several lanes, or one that is a layer ahead (2)
//
// with A, K the seconds that the link needs for the activation, or for K and V, of one token, F
// those that the device needs to make K and V of one, and W those that the link needs for the
// weights of a layer that come over it (a lane's part of them, where lanes share what comes); W = 0
// is the paper's equation. In the paper a layer's activations come before anything is made of them,
// and the device waits for them; so it is here, while the weights of the next layer come behind
// them. Where several lanes share the link, activations of one come while K and V of another are
// made, so that the longer of link and device is all that a layer takes. So it is with one lane
// whose windows have room for the activations of the next layer as well, but for the first layer of
// a step.
//
// If A < K, t falls up to the kink l = (W + K s) / (F + K) of (1), (W + K s) / (F + K - A) of (2),
// and grows behind it, so that the best integer is next to the kink, or at an end. With W >= F s
// everything is made again.
//
// Where an activation has as many bytes as K and V (grouped queries), nothing is gained: l = 0.
//
// Threading: pure functions.

#pragma once

#include <cstdint>
#include <string>

namespace lamina::policy {

// What one token takes in one layer, in seconds, and what comes for all of them.
struct RecomputeProfile {
  double activation = 0;  // A
  double kv = 0;          // K
  double make = 0;        // F
  double weights = 0;     // W, of a layer and not of a token.
};

// t(l) of one lane, or of each of several.  Requires: recomputed <= tokens.
double RecomputeSeconds(const RecomputeProfile& profile, uint64_t tokens, uint64_t recomputed);
double RecomputeSecondsOfLanes(const RecomputeProfile& profile, uint64_t tokens,
                               uint64_t recomputed);

struct RecomputeSplit {
  uint64_t recomputed = 0;  // l
  double seconds = 0;       // t(l)
};

// The l in [0, tokens] with the least t(l); of several the least.
// Requires: profile.kv + profile.make > 0.
RecomputeSplit BestRecomputeSplit(const RecomputeProfile& profile, uint64_t tokens);
RecomputeSplit BestRecomputeSplitOfLanes(const RecomputeProfile& profile, uint64_t tokens);

// For people: "38% of tokens recomputed: a token's K and V take 2.1 us on the link, its activation
// 1.0 us, making them 1.3 us, and the layer's weights 310 us", or why none are.
std::string DescribeRecompute(const RecomputeProfile& profile, double share);

}  // namespace lamina::policy
