// SPDX-License-Identifier: Apache-2.0
//
// What the driver of attention over INT8 (int8_attention.cc) and its vector code
// (int8_attention_tile.cc) say to each other.
//
// As attention_internal.h has it: tiles of rows, blocks of 256 tokens. Of a block the first tokens
// are INT8, in four parts of 64 with scales of their own, and the others bf16. All rows of a tile
// see the same tokens as INT8.
//
// Threading: an Int8Workspace belongs to one worker.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/kv_form.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/int8_kv.h"

namespace lamina::kernels::internal {

// Chosen tokens of one block of their sequence, [begin, end) of the block at hand, and where the
// scales of K of that block begin.
struct Int8Segment {
  uint32_t begin = 0;
  uint32_t end = 0;
  const Int8Scale* k_scales = nullptr;  // [head_dim]
};

struct Int8Block {
  // `begin`, `end`, `index` are those of all tokens that rows see; `offsets`, `runs` and `tiles` of
  // bf16 tokens alone.
  Block all;
  uint32_t int8_end = 0;  // Tokens [0, int8_end) of the block are INT8; 0 for none.
  // [kBlockTokens]; from the part's first token on, also of those before `begin`. Behind the last
  // INT8 token entries up to a whole tile repeat it.
  const uint32_t* slots = nullptr;
  // Where INT8 tokens are chosen ones: all of them in order. Else empty, and each part has scales.
  absl::Span<const Int8Segment> segments;
  uint32_t runs = 0;  // Bit p: the slots of part p follow each other.
  // For prefetching: K of the worker's next block, part by part; null for what is not INT8.
  const uint8_t* next_k[kBlockTokens / kInt8BlockTokens] = {};
  uint32_t tiles = 0;  // Bit g: tokens 16 g to 16 g + 15 lie in one tile, each at its own place.
};

struct Int8Tile {
  Tile tile;      // With k and v of bf16.
  Int8View int8;  // INT8 of this KV head.
};

struct Int8Workspace {
  Workspace work;
  float* k_steps = nullptr;      // [head_dim] scales of K of one part.
  float* k_bases = nullptr;      // [head_dim] -step * zero of K of one part.
  float* v_steps = nullptr;      // [kBlockTokens] scales of V.
  float* v_bases = nullptr;      // [kBlockTokens] -step * zero of V.
  uint8_t* k_tiles = nullptr;    // [kInt8BlockTokens, head_dim] K of a part that lies scattered.
  float* part_scores = nullptr;  // [rows, kInt8BlockTokens] of a part, by the scales of a segment.
};

struct Int8Ops {
  const char* name;
  void (*begin)(const Tile& tile, Workspace& work);
  void (*block)(const Int8Tile& tile, const Int8Block& block, Int8Workspace& work);
  void (*end)(const Tile& tile, Workspace& work);
  void (*merge_top_two)(const Tile& tile, Workspace& work);
};

// The vector code for each instruction set that this processor has, best first. Empty on processors
// without fused multiply-add.
absl::Span<const Int8Ops* const> SupportedInt8Ops();

}  // namespace lamina::kernels::internal

namespace lamina::kernels {

// Every fast kernel over INT8 that runs on this processor, best first, for tests and benchmarks.
absl::Span<const AttentionKernel* const> CpuInt8AttentionVariants();

}  // namespace lamina::kernels
