// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of our own linear layer in f32, one set for each instruction set. Words of bf16
// become f32 by a shift and a mask.
//
// Determinism: each output starts at 0 and takes one fused multiply-add for each input feature in
// order, then the bias. Tiles only decide which outputs are computed together. So an output's bits
// depend on its row and its weights alone, and are the same on every instruction set with fused
// multiply-add (AVX2 and AVX-512); without one (SSE) they are still row-invariant.

#pragma once

#include "kernels/cpu/panel_task.h"

namespace lamina::kernels::cpu {

void MultiplyPanelBF16(const PanelTask<float>& task);
void MultiplyPanelF32(const PanelTask<float>& task);

// "AVX3_DL", "AVX2", ...: the instruction set that the two functions above take here.
const char* PanelTargetName();

}  // namespace lamina::kernels::cpu
