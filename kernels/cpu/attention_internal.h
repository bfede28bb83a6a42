// SPDX-License-Identifier: Apache-2.0
//
// What the portable driver of attention (attention.cc) and its vector code (attention_tile.cc) say
// to each other.
//
// The driver cuts a call into tiles (consecutive query tokens of one item, all query heads of one
// KV head) and walks a tile's blocks of 256 tokens; the vector code attends one block at a time.
// Row r of a tile is query token r / group and query head r % group of the KV head.
//
// Threading: a Workspace belongs to one worker.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels::internal {

// Floats between the score rows of a tile: a block and a line, so that rows do not share cache
// sets.
inline constexpr size_t kScoreStride = kBlockTokens + 16;
// Entries of an offset table. Those past the block's last token repeat it.
inline constexpr size_t kOffsets = kBlockTokens + 16;

// Tokens whose place is asked for at once; see Block::runs and Block::tiles.
inline constexpr uint32_t kRunTokens = kTileSlots;

struct Tile {
  uint32_t head_dim = 0;
  uint32_t padded_dim = 0;  // head_dim rounded up to 32.
  float scale = 0;
  float soft_cap = 0;
  uint32_t window = 0;
  uint32_t first_seen = 0;       // First token of the item that is seen.
  const float* sinks = nullptr;  // [group], the KV head's; null for none.
  uint32_t group = 0;
  uint32_t first_position = 0;
  uint32_t query_tokens = 0;
  const BFloat16* k = nullptr;  // Slot 0 of this KV head, in tiles (kernels/k_tiles.h).
  const BFloat16* v = nullptr;
  const BFloat16* q = nullptr;  // First token, first head of the group.
  size_t q_stride = 0;
  BFloat16* out = nullptr;
  size_t out_stride = 0;
  // In place of `out`: the first token, first head of the group; see AttentionItem::partial.
  float* partial = nullptr;
  size_t partial_stride = 0;  // Floats between heads.
  uint32_t query_heads = 0;   // Query heads of a token.
  const AttentionWeights* weights = nullptr;
  size_t weights_row = 0;  // Row of the first token and first head of the group in `weights`.

  uint32_t rows() const { return query_tokens * group; }
  // Tokens that a query token sees: [FirstSeen, EndSeen).
  uint32_t FirstSeen(uint32_t token) const {
    const uint32_t end = EndSeen(token);
    return std::max(first_seen, window != 0 && end > window ? end - window : 0);
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
  // Bit g: those of tokens 16 g to 16 g + 15 that are in [begin, end) lie in one tile of K, each at
  // its own place.
  uint32_t tiles = 0;
  // What the worker will read after this block, for prefetching.
  const BFloat16* next_k = nullptr;
  const BFloat16* next_v = nullptr;
  const size_t* next_offsets = nullptr;
  uint32_t next_begin = 0;
};

inline bool IsTile(const Block& block, uint32_t token) {
  return (block.tiles >> (token / kRunTokens) & 1) != 0;
}

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

// What the arithmetics of pairs and of tiles work with, in words of two bf16. In tiles `padded_dim`
// stands for `head_dim`, with zeros at the end.
struct PairWorkspace {
  uint32_t* q = nullptr;  // [rows, head_dim / 2] or its transpose, in the order of K's lines
  uint32_t* p = nullptr;  // [rows, kPairStride]: weights of a block's tokens 2i and 2i + 1
  uint32_t* k = nullptr;  // [16 groups of tokens, head_dim / 2, 16]: a block of K
  uint32_t* v = nullptr;  // [padded_dim / 16, 128 pairs of tokens, 16 elements]: a block of V
};
// A block's pairs and a line, so that rows do not share cache sets.
inline constexpr size_t kPairStride = kBlockTokens / 2 + 16;

// Working memory of one worker. `rows16` is the row count rounded up to 16.
struct Workspace {
  float* q = nullptr;       // [rows, padded_dim]
  float* scores = nullptr;  // [rows, kScoreStride]; then the weights exp(s - peak). They lie in
                            // `own_scores`, or in a KeptTile (attention_kept.h).
  float* own_scores = nullptr;
  size_t scores_ahead = 0;     // Floats from the scores to those of the next block, where these lie
                               // elsewhere; 0: there is nothing to ask for.
  float* k_tile = nullptr;     // K of tokens that do not lie in one tile, as one; bf16.
  float* stack = nullptr;      // [levels, rows, padded_dim] partials of the merge tree, in an order
                               // of the vector code.
  float* stack_lse = nullptr;  // [levels, rows16]
  float* peak = nullptr;       // [rows16] largest score of the block
  float* sum = nullptr;        // [rows16] sum of weights; then its inverse.
  float* share_a = nullptr;    // [rows16] weights of a merge
  float* share_b = nullptr;    // [rows16]
  size_t rows_max = 0;         // The strides of `stack` and `stack_lse`.
  size_t rows16 = 0;
  size_t depth = 0;  // Partials on the stack.
  PairWorkspace pairs;
};

// What all arithmetics have in common.
struct MergeOps {
  // Ends a block of which work.peak and work.sum are known, and whose sums of values lie on top of
  // the stack: lse, the division by the sum, and what the tree merges now.
  void (*close)(const Tile& tile, const Block& block, Workspace& work);
  void (*merge_top_two)(const Tile& tile, Workspace& work);
  // s = cap * tanh(s / cap), of a multiple of 16 scores.
  void (*cap)(float cap, float* s, size_t count);
};

struct AttentionOps {
  const char* name;
  void (*begin)(const Tile& tile, Workspace& work);
  void (*block)(const Tile& tile, const Block& block, Workspace& work);
  void (*end)(const Tile& tile, Workspace& work);
  MergeOps merge;
  // Rows of a prefill tile: enough to read a block of K and V once for many queries, few enough
  // that their scores (1 KiB each) stay in the second-level cache.
  uint32_t tile_rows = 64;
  bool has_pairs = false;  // Its workspace has Workspace::pairs.
};

// The vector code for each instruction set that this processor has, best first. Empty on processors
// without fused multiply-add.
absl::Span<const AttentionOps* const> SupportedAttentionOps();

// The driver over vector code, which outlives it.
std::unique_ptr<AttentionKernel> MakeAttentionKernel(const AttentionOps& ops);

}  // namespace lamina::kernels::internal

namespace lamina::kernels {

// Every fast kernel that runs on this processor, best first, for tests and benchmarks.
absl::Span<const AttentionKernel* const> CpuAttentionVariants();

}  // namespace lamina::kernels
