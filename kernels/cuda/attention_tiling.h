// SPDX-License-Identifier: Apache-2.0
//
// How the attention kernels divide work among thread blocks, by the shared memory that a device
// gives one: 227 KiB on compute capability 9.0 and 10.0, 163 KiB on 8.0, 99 KiB on 8.6, 8.9 and
// 12.0.
//
//   rows of a tile   query tokens times heads of one KV head
//   stage            tokens of V that AttendBlocks has in shared memory at a time
//   ring             pieces of 64 tokens that AttendBlocksTensor has there at a time
//   run              blocks that a thread block of AttendRunsTensor merges itself: an aligned run
//   of
//                    the tree, whose unmerged partials are in shared memory but for the oldest
//
// None of them shows in a row's bits: tiles do not mix rows, and stages and pieces come in the
// order of tokens (docs/design/attention_numerics.md).
//
// Plain functions for host and device code; the table at the end is checked by the compiler.

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "common/attention_arithmetic.h"

namespace lamina::kernels::cuda {

inline constexpr uint32_t kAttentionBlockTokens = 256;
inline constexpr int kAttentionThreads = 128;
// Rows of a tile, at most, in canonical arithmetic and on tensor cores.
inline constexpr uint32_t kAttentionRowsMax = 32;
inline constexpr uint32_t kTensorRowsMax = 64;

inline constexpr int kWarps = kAttentionThreads / 32;
// What a product on tensor cores takes: rows of a tile, tokens of a group, columns.
inline constexpr int kSide = 16;
inline constexpr int kPieceTokens = kWarps * kSide;
// Elements behind each row in shared memory: rows are then an odd number of 16 bytes apart, so that
// the eight rows of a matrix lie in different banks, for every head size.
inline constexpr int kPadding = 8;
// Rows of the ring have none where the head is whole lines of 128 bytes. A row's 16-byte pieces
// then change places within their line, by its number mod 8: the same banks, and asynchronous
// copies write whole lines, where those to rows apart fetch half as many sectors again as there
// are.
constexpr bool TakesTurns(int head_dim) { return head_dim % 64 == 0; }
constexpr int RingStride(int head_dim) {
  return TakesTurns(head_dim) ? head_dim : head_dim + kPadding;
}
// Bytes of V in a stage, at most: so three thread blocks fit on a multiprocessor of 228 KB.
inline constexpr size_t kStageBytesMax = size_t{64} * 1024;
// Tokens of a stage, at least: with fewer a thread block would wait more than it computes.
inline constexpr uint32_t kStageTokensMin = 32;

// Dynamic shared memory of AttendBlocks with `rows` rows.
constexpr size_t CanonicalSharedBytes(uint32_t head_dim, uint32_t rows, uint32_t stage_tokens) {
  return size_t{stage_tokens} * head_dim * sizeof(uint16_t) +
         size_t{rows} * (head_dim + kAttentionBlockTokens + 1) * sizeof(float) +
         kAttentionBlockTokens * sizeof(uint32_t);
}

// The most tokens of V, a power of two, that fit next to `rows` rows; 0: too few do.
constexpr uint32_t StageTokensOf(uint32_t head_dim, uint32_t rows, size_t shared_bytes_max) {
  for (uint32_t tokens = kAttentionBlockTokens; tokens >= kStageTokensMin; tokens /= 2) {
    if (tokens * head_dim * sizeof(uint16_t) <= kStageBytesMax &&
        CanonicalSharedBytes(head_dim, rows, tokens) <= shared_bytes_max) {
      return tokens;
    }
  }
  return 0;
}

// Whether AttendBlocksDecode has kernels for heads of this size.
constexpr bool HasDecodeKernel(uint32_t head_dim) {
  return head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256;
}
// Thread blocks for each multiprocessor, up to which the four warps of AttendBlocks are done with a
// block of tokens before the one warp of AttendBlocksDecode.
inline constexpr uint32_t kFewBlocks = 2;

// Tiles of 16 rows that AttendBlocksTensor has kernels for.
constexpr uint32_t RowTilesOf(uint32_t rows) {
  return rows <= kSide ? 1 : rows <= 2 * kSide ? 2 : 4;
}

// The head sizes that AttendBlocksTensor has kernels of their own for; 0: the one for all others.
constexpr int OwnHeadDim(uint32_t head_dim) {
  return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128 || head_dim == 256
             ? static_cast<int>(head_dim)
             : 0;
}

// Pieces in the ring, of kernels of a head size: on a multiprocessor of 228 KB three thread blocks
// fit with 16 rows and heads of 128, five with heads of 64; two with 64 rows up to heads of 128,
// and with 16 rows up to heads of 256.
constexpr int LongestRing(int own_head_dim) {
  return own_head_dim != 0 && own_head_dim <= 128 ? 4 : 3;
}
// The ring where that does not fit; heads up to 128 never need it.
constexpr int ShortestRing(int own_head_dim) {
  return own_head_dim != 0 && own_head_dim <= 128 ? LongestRing(own_head_dim)
                                                  : LongestRing(own_head_dim) - 1;
}

// Queries and weights lie in one place: they are never there together.
constexpr size_t RowTileBytes(uint32_t head_dim) {
  const size_t queries = kSide * (head_dim + size_t{kPadding}) * sizeof(uint16_t);
  const size_t weights = kAttentionBlockTokens / kSide * size_t{32} * 16;
  return queries > weights ? queries : weights;
}

constexpr size_t RingBytes(uint32_t head_dim, int ring) {
  return size_t{kPieceTokens} * static_cast<size_t>(ring) *
         static_cast<size_t>(RingStride(static_cast<int>(head_dim))) * sizeof(uint16_t);
}

// Dynamic shared memory of AttendBlocksTensor.
constexpr size_t TensorSharedBytes(uint32_t head_dim, uint32_t rows, int ring) {
  const uint32_t row_tiles = RowTilesOf(rows);
  return RingBytes(head_dim, ring) + row_tiles * RowTileBytes(head_dim) +
         size_t{2} * kWarps * row_tiles * kSide * sizeof(float) +
         kAttentionBlockTokens * sizeof(uint32_t);
}

// The longest ring that fits next to `rows` rows; 0: none does.
constexpr int RingOf(uint32_t head_dim, uint32_t rows, size_t shared_bytes_max) {
  const int own = OwnHeadDim(head_dim);
  for (int ring = LongestRing(own); ring >= ShortestRing(own); --ring) {
    if (TensorSharedBytes(head_dim, rows, ring) <= shared_bytes_max) {
      return ring;
    }
  }
  return 0;
}

// Rows of a tile on a device; 0: not even one tile of 16 rows fits.
constexpr uint32_t TileRowsMax(AttentionArithmetic arithmetic, uint32_t head_dim,
                               size_t shared_bytes_max) {
  const bool tensor = arithmetic == AttentionArithmetic::kTensor;
  for (uint32_t rows = tensor ? kTensorRowsMax : kAttentionRowsMax; rows >= kSide; rows /= 2) {
    const bool fits = tensor ? RingOf(head_dim, rows, shared_bytes_max) != 0
                             : StageTokensOf(head_dim, rows, shared_bytes_max) != 0;
    if (fits) {
      return rows;
    }
  }
  return 0;
}

// AttendRunsTensor: eight warps of 16 rows, for tiles that have more rows than
// AttendBlocksTensor's.
inline constexpr int kRunThreads = 256;
inline constexpr uint32_t kRunRows = 128;

// How it divides work on a device; no rows: it has no kernel for these heads.
struct RunTiling {
  uint32_t rows = 0;
  int ring = 0;
  int levels = 0;         // Partials that wait for their sibling in shared memory.
  uint32_t run_log2 = 0;  // Blocks of the longest run: one level more waits in global memory.
};

// Partials of all rows of a tile, as one level of waiting ones.
constexpr size_t RunLevelBytes(uint32_t head_dim) {
  return size_t{kRunRows} * head_dim * sizeof(float);
}

// Dynamic shared memory of AttendRunsTensor. Queries are read before anything waits, so that they
// lie in the place of what will.
constexpr size_t RunSharedBytes(uint32_t head_dim, int ring, int levels) {
  const size_t queries = size_t{kRunRows} * (head_dim + kPadding) * sizeof(uint16_t);
  const size_t waiting = static_cast<size_t>(levels) * RunLevelBytes(head_dim);
  const size_t lse = (static_cast<size_t>(levels) + 1) * kRunThreads * 2 * sizeof(float);
  const size_t slots = (size_t{kAttentionBlockTokens} << (levels + 1)) * sizeof(uint32_t);
  return RingBytes(head_dim, ring) + (queries > waiting ? queries : waiting) + lse + slots;
}

// The longest runs that a device has room for.
constexpr RunTiling RunTilingOf(AttentionArithmetic arithmetic, uint32_t head_dim, uint32_t group,
                                size_t shared_bytes_max) {
  if (arithmetic != AttentionArithmetic::kTensor || group > kRunRows ||
      (head_dim != 64 && head_dim != 128)) {
    return {};
  }
  for (int levels = 2; levels >= 0; --levels) {
    const int ring = levels > 0 ? 4 : 3;  // Heads of 64 never need the short one.
    if (RunSharedBytes(head_dim, ring, levels) <= shared_bytes_max) {
      return {.rows = kRunRows,
              .ring = ring,
              .levels = levels,
              .run_log2 = static_cast<uint32_t>(levels) + 1};
    }
  }
  return {};
}

// Shared memory of a thread block, by compute capability.
inline constexpr size_t kSharedBytesOf90 = size_t{227} * 1024;
inline constexpr size_t kSharedBytesOf80 = size_t{163} * 1024;
inline constexpr size_t kSharedBytesOf86 = size_t{99} * 1024;

// Whether every head size has tiles of `rows` rows or more, in both arithmetics.
constexpr bool AllHeadsHaveTiles(size_t shared_bytes_max, uint32_t rows) {
  for (uint32_t head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (const auto arithmetic : {AttentionArithmetic::kCanonical, AttentionArithmetic::kTensor}) {
      if (TileRowsMax(arithmetic, head_dim, shared_bytes_max) < rows) {
        return false;
      }
    }
  }
  return true;
}
static_assert(AllHeadsHaveTiles(kSharedBytesOf86, 32));
static_assert(RunTilingOf(AttentionArithmetic::kTensor, 128, 4, kSharedBytesOf90).run_log2 == 3);
static_assert(RunTilingOf(AttentionArithmetic::kTensor, 128, 4, kSharedBytesOf80).run_log2 == 2);
static_assert(RunTilingOf(AttentionArithmetic::kTensor, 128, 4, kSharedBytesOf86).run_log2 == 1);
static_assert(RunTilingOf(AttentionArithmetic::kTensor, 64, 3, kSharedBytesOf86).ring == 4);
static_assert(TileRowsMax(AttentionArithmetic::kTensor, 240, kSharedBytesOf86) == 64);
static_assert(TileRowsMax(AttentionArithmetic::kTensor, 256, kSharedBytesOf86) == 32);
static_assert(TileRowsMax(AttentionArithmetic::kTensor, 256, kSharedBytesOf80) == 64);
static_assert(RingOf(256, 64, kSharedBytesOf80) == 3 && RingOf(128, 64, kSharedBytesOf80) == 4);
static_assert(StageTokensOf(256, 32, kSharedBytesOf80) == 128);
static_assert(RingOf(128, 64, kSharedBytesOf86) == 4 && RingOf(256, 16, kSharedBytesOf86) == 2);

}  // namespace lamina::kernels::cuda
