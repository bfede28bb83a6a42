// SPDX-License-Identifier: Apache-2.0
//
// In what spill tiers are counted: blocks of so many tokens, K and V of all layers that the memory
// node has. A sequence has whole blocks, the last one perhaps in part. A block begins where a disk
// can be read without the system's memory. Where K and V are INT8, what is behind the last closed
// block is bf16, of which a block of the same bytes has fewer tokens.

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

// Tokens of an open block that a block has: INT8 with its scales takes more than half of bf16.
// Whole tiles of K.
inline constexpr uint32_t kSpillTailTokens = kSpillBlockTokens / 2;

// Blocks of so many tokens of an open block.
inline uint32_t SpillTailBlocksOf(uint32_t tokens) {
  return tokens / kSpillTailTokens + (tokens % kSpillTailTokens > 0 ? 1 : 0);
}

}  // namespace lamina::plan
