// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/scale_kernels.h"

#include "kernels/canonical_math.h"
#include "kernels/cpu/row_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/scale_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
#include "kernels/cpu/row_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::cpu {
namespace HWY_NAMESPACE {

// Near 0 the polynomial of canonical_math.h, elsewhere (1 - e) / (1 + e) with e = exp(-2 |y|).
HWY_INLINE V Tanh(V y) {
  const V a = hn::Abs(y);
  const V z = hn::Mul(y, y);
  V t = Constant(canonical::kTanhT[0]);
  for (int i = 1; i < 5; ++i) {
    t = hn::MulAdd(t, z, Constant(canonical::kTanhT[i]));
  }
  const V small = hn::MulAdd(hn::Mul(y, z), t, y);
  const V e = Exp(hn::Mul(Constant(-2.0f), a));
  const V one = Constant(1.0f);
  const V large = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), y);
  return hn::IfThenElse(hn::Lt(a, Constant(canonical::kTanhSmall)), small, large);
}

void Scale(MatrixView<const float> x, float factor, float soft_cap, MatrixView<float> out) {
  const V scale = Constant(factor);
  const V cap = Constant(soft_cap);
  for (size_t i = 0; i < x.rows; ++i) {
    if (soft_cap == 0.0f) {
      MapRow(x.row(i), x.row(i), out.row(i), x.cols, 0.0f,
             [&](V value, V) { return hn::Mul(value, scale); });
    } else {
      MapRow(x.row(i), x.row(i), out.row(i), x.cols, 0.0f,
             [&](V value, V) { return hn::Mul(cap, Tanh(hn::Div(hn::Mul(value, scale), cap))); });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lamina::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace lamina::kernels::cpu {
namespace {

HWY_EXPORT(Scale);

// `heads` heads from column `first` on.
void NormSome(MatrixView<const float> x, const HeadNorms& norms, size_t first, size_t heads,
              absl::Span<const float> weight, MatrixView<float> out) {
  const size_t cols = (norms.whole ? heads : 1) * norms.head_dim;
  for (size_t at = first; at < first + heads * norms.head_dim; at += cols) {
    const MatrixView<float> to = out.Cols(at, cols);
    RmsNormRows({.x = x.Cols(at, cols),
                 .weight = weight.data(),
                 .epsilon = norms.epsilon,
                 .out = {to.data, to.rows, to.cols, to.stride, DType::kF32}});
  }
}

}  // namespace

void NormHeadsRows(MatrixView<const float> x, const HeadNorms& norms, MatrixView<float> out) {
  const size_t k = norms.query_heads * norms.head_dim;
  const size_t v = k + norms.kv_heads * norms.head_dim;
  NormSome(x, norms, 0, norms.query_heads, norms.q_weight, out);
  NormSome(x, norms, k, norms.kv_heads, norms.k_weight, out);
  for (size_t i = 0; i < x.rows; ++i) {
    std::copy_n(x.row(i) + v, x.cols - v, out.row(i) + v);
  }
}

void ScaleRows(MatrixView<const float> x, float factor, float soft_cap, MatrixView<float> out) {
  HWY_DYNAMIC_DISPATCH(Scale)(x, factor, soft_cap, out);
}

void RoundRows(MatrixView<const float> x, const ActivationView& out) {
  for (size_t i = 0; i < x.rows; ++i) {
    if (out.dtype == DType::kF32) {
      std::copy_n(x.row(i), x.cols, static_cast<float*>(out.data) + i * out.stride);
    } else {
      RoundElements(x.row(i), x.cols, static_cast<BFloat16*>(out.data) + i * out.stride);
    }
  }
}

}  // namespace lamina::kernels::cpu
#endif
