// SPDX-License-Identifier: Apache-2.0
//
// The row layers that newer models add: norms of q and k by head, factors and soft caps, rounding.
// As row_kernels.h: each call does all rows of its views on the calling thread; a row's bits depend
// on that row alone, and are the same on AVX2 and AVX-512.

#pragma once

#include "kernels/dense.h"
#include "kernels/matrix_view.h"

namespace lamina::kernels::cpu {

// As Dense's functions of these names say.
void NormHeadsRows(MatrixView<const float> x, const HeadNorms& norms, MatrixView<float> out);
void ScaleRows(MatrixView<const float> x, float factor, float soft_cap, MatrixView<float> out);
void RoundRows(MatrixView<const float> x, const ActivationView& out);

}  // namespace lamina::kernels::cpu
