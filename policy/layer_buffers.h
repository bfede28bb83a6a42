// SPDX-License-Identifier: Apache-2.0
//
// LayerBuffers: what a buffer of a device takes to which all heads of a layer come together, some
// tokens as the activations that K and V are made from (KVPR, HybridServe). One layer's come while
// those of the layer before are used, so that there are two buffers, or two for each that comes on
// its own.
//
// KVPR (kvpr.txt 3.2): of b sequences of s tokens, h elements of p bytes each, l tokens come as
// activations and the others as K and V:
//
//   M_X  = b l h p                                     (6)
//   M_KV = 2 b (s - l) h p
//
// l is another one in each step, so that a buffer has room for any. The sum is a straight line over
// l, and most at one of its ends.
//
// HybridServe (hybridserve.txt 4.2) has a KV buffer and an ACT buffer, for the k and the a tokens
// of fetch_hybrid.h.
//
// In both papers what is made of activations, and what the rows at work take, are left out.
//
// Threading: pure functions.   Units: bytes.

#pragma once

#include <cstdint>

#include "policy/fetch_hybrid.h"

namespace lamina::policy {

// What a token takes in one layer.
struct LayerToken {
  uint64_t activation = 0;  // h p
  uint64_t kv = 0;          // 2 h p; less with grouped queries.
};

// M_X + M_KV of the first `recomputed` of so many tokens and the others.
// Requires: recomputed <= tokens.
uint64_t SplitBytes(const LayerToken& token, uint64_t tokens, uint64_t recomputed);

// The most of all splits.
uint64_t MostSplitBytes(const LayerToken& token, uint64_t tokens);

// Both buffers of HybridServe: of what comes.
uint64_t HybridBytes(const LayerToken& token, const HybridTokens& tokens);

}  // namespace lamina::policy
