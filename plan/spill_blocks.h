// SPDX-License-Identifier: Apache-2.0
//
// In what spill tiers are counted: blocks of so many tokens, K and V of all layers that the memory
// node has. A sequence has whole blocks, the last one perhaps in part.

#pragma once

#include <cstdint>

namespace lamina::plan {

// A multiple of a tile of K, so that all but the ends of extents are copied as they lie.
inline constexpr uint32_t kSpillBlockTokens = 64;

inline uint32_t SpillBlocksOf(uint32_t tokens) {
  return tokens / kSpillBlockTokens + (tokens % kSpillBlockTokens > 0 ? 1 : 0);
}

}  // namespace lamina::plan
