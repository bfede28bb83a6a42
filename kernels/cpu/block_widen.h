// SPDX-License-Identifier: Apache-2.0
//
// From strip blocks (block_layout.h) to words of bf16 (panel_task.h): exactly the values that the
// file's blocks mean in f32, rounded to bf16. A scale times a quantum has at most 24 bits, so that
// the product is exact and only adding a minimum rounds, fused or not.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/block_layout.h"

namespace lamina::kernels::cpu {

// Widens `blocks` strip blocks that follow each other.
// Shapes: words  [blocks * elements / 2, 16], aligned to a cache line
using WidenStrip = void (*)(const uint8_t* strip, size_t blocks, uint32_t* words);

// For strips in LaneOrder::kFeatures; on every instruction set.
WidenStrip FeatureWidener(BlockType type);

// For strips in LaneOrder::kPairs. Its conversion to bf16 takes subnormals for zeros, as the
// product of pairs does. Requires: HasPairTiles().
WidenStrip PairWidener(BlockType type);

}  // namespace lamina::kernels::cpu
