// SPDX-License-Identifier: Apache-2.0
//
// TokenLayer: what a layer of a step takes where K and V of the first r of each row's n tokens are
// made from their numbers (policy fetch_recompute with fetch.recompute tokens; the token
// recomputation that HybridServe compares with, hybridserve.txt, Figure 4): they run through all
// layers again, while K and V of the other n - r are on the link. Splits are chosen by it
// (policy/token_recompute.h), and steps predicted (policy_step.h). With b rows that are alike, and
// for one layer
//
//   L  a token's K and V on the link
//   M  a token through the layer without attention, on the device
//   A  one token attending to one, there
//   D  what the device does in the layer besides: dense layers and attention of the rows
//   W  the layer's weights, where they come over the same link
//      (docs/adr/0219-made-again-behind-weights-that-come.md)
//
//   link(r)   = W + b L (n - r)
//   device(r) = D + b (M r + A r (r + 1) / 2)      as in a prompt, each attends to those before it
//   t(r)      = max(link(r), device(r))
//
// One falls and the other grows with r, so that the least t is where they cross. From an activation
// K and V take two matrices of a layer, from a number all of them: M is several times as long.
//
// Determinism: pure functions of their arguments.

#pragma once

#include <cstdint>

namespace lamina::cost {

// Times are in seconds; the letters are those of the equations.
struct TokenProfile {
  double kv = 0;       // L
  double make = 0;     // M
  double attend = 0;   // A
  double other = 0;    // D
  double weights = 0;  // W
};

// What is made comes in whole tiles of so many tokens.
inline constexpr uint32_t kTokenTile = 16;

struct TokenLoad {
  uint32_t rows = 1;           // b
  uint32_t context = 0;        // n
  uint32_t tile = kTokenTile;  // Tokens of a tile; where K and V are INT8 those of a block.
};

struct TokenSplit {
  uint32_t made = 0;   // r
  double seconds = 0;  // t(r)
};

// t(made).   Requires: made <= load.context.
double TokenLayerSeconds(const TokenProfile& profile, const TokenLoad& load, uint32_t made);

// The multiple of load.tile in [0, n] with the least t(r); of several the least.
// Cost: O(log n).
TokenSplit BestTokenSplit(const TokenProfile& profile, const TokenLoad& load);

}  // namespace lamina::cost
