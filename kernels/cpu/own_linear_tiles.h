// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of our own linear layer, one set for each instruction set.
//
// Weights lie in panels of 64 output features, each of four strips of 16: a strip is [steps][16]
// words of 32 bits, one cache line for each step, so that every pass over the rows reads memory in
// order. For f32 a step is one input feature; for bf16 it is two, the even one in the low half of
// the word and the odd one in the high half, so that a shift and a mask make f32 of them.
//
// The weights of a model come from memory at every step, and a few rows' arithmetic takes about as
// long as that. So while one panel is multiplied, the next is asked for, evenly over the whole
// time.
//
// Determinism: each output starts at 0 and takes one fused multiply-add for each input feature in
// order, then the bias. Tiles only decide which outputs are computed together. So an output's bits
// depend on its row and its weights alone, and are the same on every instruction set with fused
// multiply-add (AVX2 and AVX-512); without one (SSE) they are still row-invariant.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lamina::kernels::cpu {

inline constexpr size_t kPanelFeatures = 64;
inline constexpr size_t kStripFeatures = 16;

// Shapes: panel  [4, steps, 16] words
//         next   as many words as `panel`: fetched into the second cache; may be null
//         in     [rows, >= inputs] f32, `in_stride` elements between rows; for bf16 weights
//                inputs = 2 * steps, else inputs = steps.
//         bias   [64]
//         out    [rows, features] f32, features <= 64
struct PanelTask {
  const uint32_t* panel = nullptr;
  const uint32_t* next = nullptr;
  size_t steps = 0;
  const float* in = nullptr;
  size_t in_stride = 0;
  size_t rows = 0;
  const float* bias = nullptr;
  float* out = nullptr;
  size_t out_stride = 0;
  size_t features = kPanelFeatures;
};

void MultiplyPanelBF16(const PanelTask& task);
void MultiplyPanelF32(const PanelTask& task);

// "AVX3_DL", "AVX2", ...: the instruction set that the two functions above take here.
const char* PanelTargetName();

}  // namespace lamina::kernels::cpu
