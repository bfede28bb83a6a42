// SPDX-License-Identifier: Apache-2.0
//
// The inner loop of our own linear layer with AVX-512 BF16, whose instruction multiplies pairs of
// bf16 and adds both products to an f32 (VDPBF16PS).
//
// Determinism: each output starts at 0 and takes one such instruction for each pair of input
// features in order, then the bias. So an output's bits depend on its row and its weights alone.
// They are not those of f32 multiply-adds: the instruction takes subnormals for zeros and rounds in
// an order of its own.

#pragma once

#include "common/dtype.h"
#include "kernels/cpu/panel_task.h"

namespace lamina::kernels::cpu {

// Whether this processor has the instruction, and this build the loop.
bool HasPairTiles();

// Up to so many rows read each weight once; the steps of a panel need not be cut for them.
inline constexpr size_t kPairRowsOnce = 12;

// Words of bf16 times rows of bf16. Requires: HasPairTiles().
void MultiplyPanelPairs(const PanelTask<BFloat16>& task);

}  // namespace lamina::kernels::cpu
