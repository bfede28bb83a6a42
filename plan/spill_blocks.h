// SPDX-License-Identifier: Apache-2.0
//
// In what spill tiers are counted: blocks of so many tokens, K and V of all layers that the memory
// node has. A sequence has whole blocks, the last one perhaps in part. A block begins where a disk
// can be read without the system's memory.

#pragma once

#include <cstdint>

namespace lamina::plan {

// A multiple of a tile of K, so that all but the ends of extents are copied as they lie.
inline constexpr uint32_t kSpillBlockTokens = 64;

inline constexpr uint64_t kSpillAlignment = 4096;

// Bytes of the file that a block takes whose tokens have so many bytes each.
inline uint64_t SpillBlockBytes(uint64_t bytes_per_token) {
  const uint64_t bytes = bytes_per_token * kSpillBlockTokens;
  return (bytes + kSpillAlignment - 1) / kSpillAlignment * kSpillAlignment;
}

inline uint32_t SpillBlocksOf(uint32_t tokens) {
  return tokens / kSpillBlockTokens + (tokens % kSpillBlockTokens > 0 ? 1 : 0);
}

}  // namespace lamina::plan
