// SPDX-License-Identifier: Apache-2.0
//
// What the portable driver of attention (attention.cc) and its vector code (attention_tile.cc) say
// to each other.
//
// The driver cuts a call into tiles (consecutive query tokens of one item, all query heads of one
// KV head) and walks a tile's blocks of 256 tokens; the vector code attends one block at a time.
// Row r of a tile is query token r / group and query head r % group of the KV head.
//
// Floats of a head are kept *split*: of every 32 elements first the 16 even ones, then the 16 odd
// ones, because that is how two bf16 in a 32-bit word fall apart by a shift and a mask.
//
// Threading: a Workspace belongs to one worker.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/attention.h"

namespace lamina::kernels::internal {

// Floats between the score rows of a tile: a block and a line, so that rows do not share cache
// sets.
inline constexpr size_t kScoreStride = kBlockTokens + 16;
// Entries of an offset table. Those past the block's last token repeat it.
inline constexpr size_t kOffsets = kBlockTokens + 16;

// Tokens whose place is asked for at once; see Block::runs.
inline constexpr uint32_t kRunTokens = 16;

struct Tile {
  uint32_t head_dim = 0;
  uint32_t padded_dim = 0;  // head_dim rounded up to 32.
  float scale = 0;
  float soft_cap = 0;
  uint32_t window = 0;
  uint32_t group = 0;
  uint32_t first_position = 0;
  uint32_t query_tokens = 0;
  const BFloat16* k = nullptr;  // Slot 0 of this KV head.
  const BFloat16* v = nullptr;
  const BFloat16* q = nullptr;  // First token, first head of the group.
  size_t q_stride = 0;
  BFloat16* out = nullptr;
  size_t out_stride = 0;
  // In place of `out`: of the first token, first head of the group; see AttentionItem::partial.
  float* partial = nullptr;
  size_t partial_stride = 0;  // Floats between heads.
  uint32_t query_heads = 0;   // Of a token.

  uint32_t rows() const { return query_tokens * group; }
  // Tokens that a query token sees: [FirstSeen, EndSeen).
  uint32_t FirstSeen(uint32_t token) const {
    const uint32_t end = EndSeen(token);
    return window != 0 && end > window ? end - window : 0;
  }
  uint32_t EndSeen(uint32_t token) const { return first_position + token + 1; }
};

// The tokens of one block that at least one row of the tile sees: [begin, end), counted from the
// block's first token.
struct Block {
  uint32_t index = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  const size_t* offsets = nullptr;  // [kOffsets] elements from slot 0, by token of the block.
  // Bit g: tokens 16 g to 16 g + 15 are all in [begin, end) and lie in consecutive slots.
  uint32_t runs = 0;
  // What the worker will read after this block, for prefetching.
  const BFloat16* next_k = nullptr;
  const BFloat16* next_v = nullptr;
  const size_t* next_offsets = nullptr;
  uint32_t next_begin = 0;
};

inline bool IsRun(const Block& block, uint32_t token) {
  return (block.runs >> (token / kRunTokens) & 1) != 0;
}

// The tokens of a block that one query token sees, counted from the block's first token.
struct TokenRange {
  uint32_t begin = 0;
  uint32_t end = 0;  // <= begin: none.
  bool empty() const { return end <= begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

inline TokenRange SeenInBlock(const Tile& tile, const Block& block, uint32_t row) {
  const uint32_t token = row / tile.group;
  const uint32_t first = block.index * kBlockTokens;
  const uint32_t seen_begin = tile.FirstSeen(token);
  const uint32_t seen_end = tile.EndSeen(token);
  return {.begin = seen_begin > first ? seen_begin - first : 0,
          .end = seen_end > first ? std::min(seen_end - first, kBlockTokens) : 0};
}

// Asks for a line into the second-level cache. On Zen 4 asking for the first level instead costs a
// third of the bandwidth (13.5 against 18.7 GB/s a core): its few miss buffers are then held for as
// long as DRAM takes. Highway's Prefetch cannot name a level.
inline __attribute__((always_inline)) void PrefetchLine(const void* line) {
  constexpr int kRead = 0;
  constexpr int kSecondLevel = 2;
  __builtin_prefetch(line, kRead, kSecondLevel);
}

// What to ask for while a phase of a block (scores, which read K; then values, which read V) walks
// its tokens.
//
// A worker reads K of a block, its V, K of its next block: one stream. It asks for lines in two:
// two tokens of either phase pay for one row of K and one of V. One stream of requests uses only
// part of what DRAM has; two overlap reading with arithmetic better
// (docs/performance.md#attention).
//
// With n tokens in the block, of which s have passed, the row asked for is (n + s + kLead) / 2 of
// the phase's own matrix and (s + kLead) / 2 of the other; behind the block's end, as far into the
// next block.
struct Ahead {
  // Tokens of a phase between the request of a block's last row and its use; that of the first row
  // comes up to a block earlier.
  static constexpr uint32_t kLead = 64;
  static constexpr uint32_t kGroups = kBlockTokens / kRunTokens;

  // By group of kRunTokens tokens: the first of kRunTokens / 2 rows, which are taken to follow each
  // other. Where they don't, some lines are asked for in vain.
  const uint16_t* own[kGroups];
  const uint16_t* other[kGroups];

  static Ahead OfScores(const Tile& tile, const Block& block) {
    return Ahead(block, Stream(block, tile.k, block.next_k), Stream(block, tile.v, block.next_v));
  }
  static Ahead OfValues(const Tile& tile, const Block& block) {
    // Of this block's K nothing is left to ask for.
    Stream k(block, tile.k, block.next_k);
    k.passed = k.end - block.begin;
    return Ahead(block, Stream(block, tile.v, block.next_v), k);
  }

 private:
  // A matrix in this block and in the next.
  struct Stream {
    Stream(const Block& block, const BFloat16* matrix, const BFloat16* next_matrix)
        : rows(reinterpret_cast<const uint16_t*>(matrix)),
          offsets(block.offsets),
          end(block.end),
          next_rows(reinterpret_cast<const uint16_t*>(next_matrix)),
          next_offsets(block.next_offsets + block.next_begin),
          next_tokens(kBlockTokens - block.next_begin) {}

    const uint16_t* Row(uint32_t token) const {
      token += passed;
      return token < end ? rows + offsets[token]
                         : next_rows + next_offsets[std::min(token - end, next_tokens)];
    }

    const uint16_t* rows;
    const size_t* offsets;
    uint32_t end;
    const uint16_t* next_rows;
    const size_t* next_offsets;
    uint32_t next_tokens;
    uint32_t passed = 0;
  };

  Ahead(const Block& block, const Stream& mine, const Stream& others) {
    const uint32_t half = (block.end - block.begin) / 2;
    for (uint32_t group = block.begin / kRunTokens; group * kRunTokens < block.end; ++group) {
      const uint32_t passed = std::max(group * kRunTokens, block.begin) - block.begin;
      const uint32_t row = block.begin + (passed + kLead) / 2;
      own[group] = mine.Row(row + half);
      other[group] = others.Row(row);
    }
  }
};

// Working memory of one worker. `rows16` is the row count rounded up to 16.
struct Workspace {
  float* q = nullptr;          // [rows, padded_dim] split
  float* scores = nullptr;     // [rows, kScoreStride]; then the weights exp(s - peak).
  float* stack = nullptr;      // [levels, rows, padded_dim] split; partials of the merge tree.
  float* stack_lse = nullptr;  // [levels, rows16]
  float* peak = nullptr;       // [rows16] largest score of the block
  float* sum = nullptr;        // [rows16] sum of weights; then its inverse.
  float* share_a = nullptr;    // [rows16] weights of a merge
  float* share_b = nullptr;    // [rows16]
  size_t rows_max = 0;         // The strides of `stack` and `stack_lse`.
  size_t rows16 = 0;
  size_t depth = 0;  // Partials on the stack.
};

struct AttentionOps {
  const char* name;
  void (*begin)(const Tile& tile, Workspace& work);
  void (*block)(const Tile& tile, const Block& block, Workspace& work);
  void (*end)(const Tile& tile, Workspace& work);
};

// The vector code for each instruction set that this processor has, best first. Empty on processors
// without fused multiply-add.
absl::Span<const AttentionOps* const> SupportedAttentionOps();

}  // namespace lamina::kernels::internal

namespace lamina::kernels {

// Every fast kernel that runs on this processor, best first, for tests and benchmarks.
absl::Span<const AttentionKernel* const> CpuAttentionVariants();

}  // namespace lamina::kernels
