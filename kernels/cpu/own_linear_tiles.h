// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of our own linear layer, one set for each instruction set.
//
// Weights lie in panels of 64 output features. A panel is [steps][64] words of 32 bits: for f32 a
// step is one input feature; for bf16 it is two, the even one in the low half of the word and the
// odd one in the high half, so that a shift and a mask make f32 of them.
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

// Shapes: panel  [steps, 64] words
//         in     [rows, >= inputs] f32, `in_stride` elements between rows; for bf16 weights
//                inputs = 2 * steps, else inputs = steps.
//         bias   [64]
//         out    [rows, features] f32, features <= 64
struct PanelTask {
  const uint32_t* panel = nullptr;
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
