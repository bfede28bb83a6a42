// SPDX-License-Identifier: Apache-2.0
//
// RecomputeLayer: what a layer of a lane takes where K and V of the first l of its s tokens are
// made again from their activations (policy fetch_recompute; KVPR, kvpr.txt 3). Splits are chosen
// by it (policy/fetch_recompute.h), and steps predicted (kv_policies.h).
//
// Numbers are the paper's, and equations with letters are ours. A, K: the seconds that the link
// needs for the activation, or for K and V, of one token, so that A l is (6) over v_com. F: those
// that the device needs to make K and V of one (7), so that F l is (8) over v_gpu, which is (9).
//
//   t(l) = A l + max(F l, W + K (s - l))        activations come within the layer (10)
//   t(l) = max(W + A l + K (s - l), F l)        they come ahead of it (a)
//   t(l) = max(F l, W + K (s - l))              activations stay on the device: row by row, which
//                                               is (10) without its first term (b)
//
// W: the seconds that the link needs for the weights of a layer that come over it (a lane's part of
// them, where lanes share what comes); W = 0 is the paper's equation. In the paper a layer's
// activations come before anything is made of them, and the device waits for them; so it is here,
// while the weights of the next layer come behind them. Where several lanes share the link,
// activations of one come while K and V of another are made, so that the longer of link and device
// is all that a layer takes. So it is with one lane whose windows have room for the activations of
// the next layer as well, but for the first layer of a step.
//
// Where those of r tokens stay, K and V of these are made first, while the activations of the other
// m = max(0, l - r) come. Besides, the device attends to all s tokens and computes the dense layers
// of the rows, in D seconds, which it does while the activations of the next layer come:
//
//   t(l) = max(max(D + F (l - m), A m) + F m, A m + W + K (s - l))   within the layer (c)
//   t(l) = max(W + A m + K (s - l), D + F l)                         ahead of it (d)
//
// which with D = 0 are (10) and (a) for r = 0, and (b) up to l = r. In both t is the longer of what
// it is with D = 0 and of D + F l, all that the device does. Each is the longest of lines over l
// that have a bend at r, and convex, so that it is least at r, where the falling one crosses a
// rising one, or at an end.
//
// If r = 0 and A < K, t falls up to the kink l = (W + K s - D) / (F + K - A) of (d), and grows
// behind it; (c) also has the one of the paper, l = (W + K s) / (F + K), and the first of both
// counts. With W >= F s + D everything is made again. With D >= W + K s nothing is: the device is
// what takes longest without it.
//
// Determinism: pure functions of their arguments.

#pragma once

#include <cstdint>
#include <vector>

namespace lamina::cost {

// What one token takes in one layer, in seconds, and what comes for all of them.
struct RecomputeProfile {
  double activation = 0;  // A
  double kv = 0;          // K
  double make = 0;        // F
  double weights = 0;     // W, of a layer and not of a token.
  double resident = 0;    // r, tokens.
  double other_work = 0;  // D, of a layer: attention and dense layers.
};

// Says when activations come: within the layer that needs them, or ahead of it.
enum class ActivationsCome : uint8_t { kWithinLayer, kAhead };  // (c), (d)

// A lane, as far as that depends on it.
struct RecomputeLane {
  double lanes = 1;     // That have rows, this one among them.
  double weights = 0;   // W: no link's order is planned in which they come too.
  double kv_bytes = 0;  // K and V of a step in a layer.
  double room = 0;      // RoomForNextLayer()
};
ActivationsCome ActivationsComeOf(const RecomputeLane& lane);

// What shares the bytes of fetch.window.
struct RecomputeWindows {
  double bytes = 0;
  double lanes = 1;
  double memory_nodes = 1;
};

// If K and V of a step have no more bytes in a layer, windows have room for the next layer
// meanwhile, with all tokens on one memory node: pieces of half a window leave room for two more
// (plan/fetch_ring.h).
double RoomForNextLayer(const RecomputeWindows& windows);

// t(l).  Requires: recomputed <= tokens. Tokens may be shares of all of them.
double RecomputeLayerSeconds(const RecomputeProfile& profile, double tokens, double recomputed,
                             ActivationsCome come);

// Where t(l) is least, unless it is at an end: at one of these, some of which may lie outside of
// [0, tokens].
std::vector<double> RecomputeKinks(const RecomputeProfile& profile, double tokens,
                                   ActivationsCome come);

}  // namespace lamina::cost
