// SPDX-License-Identifier: Apache-2.0
//
// The dense layers that look at one row at a time, as vector code for this processor: each call
// does all rows of its views on the calling thread. See kernels/dense.h for the formulas.
//
// Determinism: a row's bits depend on that row alone, and are the same on AVX2 and AVX-512: sums
// are in double over 16 interleaved partial sums, everything else is done lane by lane.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "kernels/dense.h"
#include "kernels/matrix_view.h"

namespace lamina::kernels::cpu {

struct NormTask {
  MatrixView<const float> x;
  const float* weight = nullptr;  // [cols]
  const float* bias = nullptr;    // [cols]; LayerNorm only.
  float epsilon = 0;
  ActivationView out;
};
void RmsNormRows(const NormTask& task);
void LayerNormRows(const NormTask& task);

struct RopeTask {
  MatrixView<const float> x;
  size_t heads = 0;
  size_t head_dim = 0;
  RopeLayout layout = RopeLayout::kHalves;
  uint32_t rotary_dim = 0;
  const float* cosines = nullptr;  // [rows, rotary_dim / 2], times the magnitude.
  const float* sines = nullptr;    // [rows, rotary_dim / 2], times the magnitude.
  MatrixView<BFloat16> out;
};
void RopeRows(const RopeTask& task);

// out = act(gate) * up; `up` null: out = act(gate). Shapes: gate, up, out [rows, out.cols], gate
// and up with the stride of x.
struct ActivationTask {
  Activation activation = Activation::kSilu;
  MatrixView<const float> gate;
  const float* up = nullptr;
  ActivationView out;
};
void ActivateRows(const ActivationTask& task);

void AddRows(MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> out);
void ConvertRows(MatrixView<const BFloat16> x, const ActivationView& out);

// f32 to bf16 over `count` elements.
void RoundElements(const float* x, size_t count, BFloat16* out);

}  // namespace lamina::kernels::cpu
