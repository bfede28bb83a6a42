// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_recompute (KVPR, kvpr.txt 3): K and V of the first l of s tokens are computed again
// from their activations, which come first, while K and V of the other s - l are on the link.
//
//   t(l) = A l + max(F l, W + K (s - l))        one lane (1); activations cross the link too
//   t(l) = max(W + A l + K (s - l), F l)        several lanes, or one that is a layer ahead (2)
//   t(l) = max(F l, W + K (s - l))              activations stay on the device: row by row (3)
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
// Where those of r tokens stay, K and V of these are made first, while the activations of the other
// m = max(0, l - r) come:
//
//   t(l) = max(max(F (l - m), A m) + F m, A m + W + K (s - l))       one lane (4)
//   t(l) = max(W + A m + K (s - l), F l)                             several lanes (5)
//
// which are (1) and (2) with r = 0, and (3) up to l = r. Each is the longest of lines over l that
// have a bend at r, and convex, so that the best integer is next to r, to where the falling one
// crosses a rising one, or at an end.
//
// If r = 0 and A < K, t falls up to the kink l = (W + K s) / (F + K) of (1), (W + K s) / (F + K -
// A) of (2), and grows behind it. With W >= F s everything is made again.
//
// Where an activation has as many bytes as K and V (grouped queries), nothing is gained: l = 0. Nor
// is by activations that stay, since K and V of as many tokens have room in the same bytes, and
// none of these has to be made: r = 0 then.
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
  uint64_t resident = 0;  // r, tokens.
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
