// SPDX-License-Identifier: Apache-2.0
//
// The kernels of attention as attention.cc calls them: plain structs, no abseil.
//
// AttendBlocks (and AttendBlocksDecode, for one query token) and AttendBlocksTensor compute one
// block partial for each (query token, head, block of 256 tokens), in canonical arithmetic and in
// that of tensor cores; AttendRunsTensor one for each (query token, head, aligned run of blocks),
// with the bits of AttendBlocksTensor's partials merged. MergeBlocks joins a row's partials along
// the fixed tree; StoreRows copies K and V into slots.

#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_tiling.h"
#include "kernels/cuda/kernel_limits.h"

namespace lamina::kernels::cuda {

// Partials on the stack of a row that holds blocks [held_block, end_block), at most: one for each
// power of two, on either side of the largest, and one to merge.
constexpr uint32_t StackDepth(uint32_t held_block, uint32_t end_block) {
  const auto powers = static_cast<uint32_t>(std::bit_width(end_block));
  return (held_block == 0 ? powers : 2 * powers) + 1;
}

// An extent of a sequence, found by its place among them: `begin` tokens of what lies here are
// before it.
struct PlacedExtent {
  uint32_t first_slot = 0;
  uint32_t begin = 0;
  friend bool operator==(const PlacedExtent&, const PlacedExtent&) = default;
};

// A unit's tokens lie in more than one extent.
inline constexpr uint32_t kScattered = 0xffffffffu;

// A tile of consecutive query tokens of one sequence, and one block of its tokens, or for
// AttendRunsTensor the blocks of an aligned run, from the first one that a query token sees.
struct AttentionUnit {
  uint32_t row = 0;             // Row of its first query token in q and out.
  uint32_t query_tokens = 0;    // query_tokens * group is at most the kernel's.
  uint32_t first_position = 0;  // Position of the first query token.
  uint32_t block = 0;           // Tokens 256 * block and up.
  uint32_t tokens = 0;          // Tokens that lie here, from the block's first on, at least 1.
  uint32_t first_token = 0;     // The first one of these, counted as PlacedExtent::begin.
  uint32_t extent = 0;          // They lie in this extent
  uint32_t extents = 0;         // and the following, so many in all.
  uint32_t partial = 0;         // Partial of the first query token; the others follow.
  uint32_t first_seen = 0;      // No query token sees tokens before it.
  // The slot of the block's first token, if those that lie here have slots in a row: so nothing
  // has to wait for extents.
  uint32_t first_slot = kScattered;
  friend bool operator==(const AttentionUnit&, const AttentionUnit&) = default;
};

// The partials of one query token: of `blocks` blocks from `first_block`, `step` apart. Blocks from
// `held_block` to `first_block` are held but hidden by a window. Where partials are of runs of
// blocks, all of these count runs, whose tree is the blocks' from there on.
struct AttentionRow {
  uint32_t held_block = 0;
  uint32_t first_block = 0;
  uint32_t blocks = 0;
  uint32_t partial = 0;
  uint32_t step = 0;
  uint32_t left_out = 0;  // Rows of out before it that no query token has.
  friend bool operator==(const AttentionRow&, const AttentionRow&) = default;
};

struct AttentionShape {
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t window = 0;
  float scale = 0;
  float soft_cap = 0;
};

// Shapes: q            [rows, query_heads, head_dim] bf16, q_stride elements between rows
//         k, v         [kv_heads, slots, head_dim] bf16, head_stride elements between heads
//         partial_out  [partials, query_heads, head_dim] f32
//         partial_lse  [partials, query_heads] f32
// All of it device memory, 16-byte aligned rows.
struct AttendBlocksArguments {
  AttentionShape shape;
  const AttentionUnit* units = nullptr;
  const PlacedExtent* extents = nullptr;
  uint32_t rows_max = 0;  // Largest query_tokens * group of the units.
  // AttendBlocks alone: tokens of V in shared memory at a time; divides 256.
  uint32_t stage_tokens = 0;
  // AttendBlocksTensor and AttendRunsTensor: pieces of their ring, as RingOf() and RunTilingOf()
  // have them.
  int ring = 0;
  int levels = 0;  // AttendRunsTensor alone, as RunTilingOf() has them.
  const uint16_t* q = nullptr;
  size_t q_stride = 0;
  const uint16_t* k = nullptr;
  const uint16_t* v = nullptr;
  size_t head_stride = 0;
  float* partial_out = nullptr;
  float* partial_lse = nullptr;
};

cudaError_t AttendBlocks(const AttendBlocksArguments& arguments, uint32_t units,
                         cudaStream_t stream);

// Takes units of one query token each, with heads that HasDecodeKernel().
cudaError_t AttendBlocksDecode(const AttendBlocksArguments& arguments, uint32_t units,
                               cudaStream_t stream);

// Makes these partials by products on tensor cores, P in bf16 (docs/design/attention_numerics.md,
// "On tensor cores").
cudaError_t AttendBlocksTensor(const AttendBlocksArguments& arguments, uint32_t units,
                               cudaStream_t stream);

// Takes units of runs, of at most kRunRows rows each; `levels` of partials wait in shared memory.
cudaError_t AttendRunsTensor(const AttendBlocksArguments& arguments, uint32_t units,
                             cudaStream_t stream);

// Query heads of a layer with sinks, at most: they travel with the launch.
inline constexpr uint32_t kSinksMax = 256;

// Writes bf16 outputs [rows, query_heads, head_dim], or, where `entry_out` is not null, the entries
// that are left on each row's stack, bottom first: entry_out [rows, query_heads, entries_max,
// head_dim] and entry_lse [rows, query_heads, entries_max], both f32.
struct MergeBlocksArguments {
  uint32_t query_heads = 0;
  uint32_t head_dim = 0;
  const AttentionRow* rows = nullptr;
  const float* partial_out = nullptr;
  const float* partial_lse = nullptr;
  uint16_t* out = nullptr;
  size_t out_stride = 0;
  float* entry_out = nullptr;
  float* entry_lse = nullptr;
  uint32_t entries_max = 0;
  uint32_t depth = 0;      // Entries that a row's stack has at any time, at most: StackDepth().
  bool has_sinks = false;  // Only outputs take sinks in: entries leave them to whoever folds.
  float sinks[kSinksMax] = {};
};

cudaError_t MergeBlocks(const MergeBlocksArguments& arguments, uint32_t rows, cudaStream_t stream);

// Shapes: k, v      [tokens, kv_heads, head_dim] bf16, `stride` elements between tokens
//         slots     [tokens]
//         arena_k/v [kv_heads, slots, head_dim] bf16
struct StoreRowsArguments {
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  const uint16_t* k = nullptr;
  const uint16_t* v = nullptr;
  size_t stride = 0;
  const uint32_t* slots = nullptr;
  uint16_t* arena_k = nullptr;
  uint16_t* arena_v = nullptr;
  size_t head_stride = 0;
};

cudaError_t StoreRows(const StoreRowsArguments& arguments, uint32_t tokens, cudaStream_t stream);

// For LoadKernels(): every kernel of these files.
cudaError_t LoadAttendBlocks(KernelLimits& limits);
cudaError_t LoadAttendBlocksDecode(KernelLimits& limits);
cudaError_t LoadAttendBlocksTensor(KernelLimits& limits);
cudaError_t LoadAttendRunsTensor(KernelLimits& limits);
cudaError_t LoadMergeBlocks(KernelLimits& limits);

}  // namespace lamina::kernels::cuda
