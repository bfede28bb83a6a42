// SPDX-License-Identifier: Apache-2.0
//
// Few rows times a panel of blocks (block_panels.h), or one or two of its strips, by pairs of bf16:
// a group of inputs is widened into the first cache, for one row into registers, and multiplied
// before the next, so that the processor widens one while it adds up another, and reads memory
// meanwhile. The same bits as widening first (pair_tiles.h).

#pragma once

#include <cstddef>
#include <cstdint>

#include "common/dtype.h"
#include "kernels/block_type.h"

namespace lamina::kernels::cpu {

inline constexpr size_t kFewBlockRows = 6;

// Shapes: panel  the panel's chunks
//         next   as `panel`, of as many bytes: what will be multiplied next, some of which is asked
//                for with the end of `panel`; null where that is not known
//         asked  whether `panel` was `next` of the thread's task before
//         in     [rows, 2 * steps], `in_stride` elements between rows; 1 <= rows <= kFewBlockRows
//         bias   [16 * strips]
//         out    [rows, 16 * strips] f32, `out_stride` elements between rows
struct FewRowsTask {
  const uint8_t* panel = nullptr;
  const uint8_t* next = nullptr;
  bool asked = false;
  size_t strip = 0;  // The first of `strips`: 1, 2 or 4.
  size_t strips = 4;
  size_t steps = 0;
  const BFloat16* in = nullptr;
  size_t in_stride = 0;
  size_t rows = 0;
  const float* bias = nullptr;
  float* out = nullptr;
  size_t out_stride = 0;
};

using MultiplyFewRows = void (*)(const FewRowsTask& task);

// For panels all of whose strips are of this type. Requires: HasPairTiles().
MultiplyFewRows PairsOfBlocks(BlockType type);

}  // namespace lamina::kernels::cpu
