// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/row_kernels.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_kernels.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"
#include "kernels/cpu/row_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::cpu {
namespace HWY_NAMESPACE {

// Sixteen partial sums in double, in as many registers as that takes here. Element i goes to
// partial i % 16; they are added up in one fixed order.
constexpr size_t kPartials = 16;
using Doubles = hn::CappedTag<double, 8>;
constexpr size_t kDoubleLanes = hn::MaxLanes(Doubles());
constexpr size_t kDoubleVectors = kPartials / kDoubleLanes;
using D = hn::Vec<Doubles>;

HWY_INLINE D LoadDoubles(const float* from) {
  return hn::PromoteTo(Doubles(), hn::LoadU(hn::Rebind<float, Doubles>(), from));
}

HWY_INLINE double AddUp(const D (&sums)[kDoubleVectors]) {
  HWY_ALIGN double lanes[kPartials];
  for (size_t v = 0; v < kDoubleVectors; ++v) {
    hn::StoreU(sums[v], Doubles(), lanes + v * kDoubleLanes);
  }
  for (size_t half = kPartials / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}

// sum of step(x[i]); step adds a vector of elements to a vector of sums. The row's end is filled up
// with `pad`, which the step must turn into nothing.
template <class Step>
HWY_INLINE double SumRow(const float* x, size_t count, float pad, const Step& step) {
  D sums[kDoubleVectors];
  for (size_t v = 0; v < kDoubleVectors; ++v) {
    sums[v] = hn::Zero(Doubles());
  }
  size_t i = 0;
  for (; i + kPartials <= count; i += kPartials) {
    for (size_t v = 0; v < kDoubleVectors; ++v) {
      sums[v] = step(sums[v], LoadDoubles(x + i + v * kDoubleLanes));
    }
  }
  if (i < count) {
    float last[kPartials];
    for (size_t j = 0; j < kPartials; ++j) {
      last[j] = i + j < count ? x[i + j] : pad;
    }
    for (size_t v = 0; v < kDoubleVectors; ++v) {
      sums[v] = step(sums[v], LoadDoubles(last + v * kDoubleLanes));
    }
  }
  return AddUp(sums);
}

// 1 / sqrt(sum / count + epsilon)
HWY_INLINE double InverseDeviation(double sum, size_t count, float epsilon) {
  return 1 / std::sqrt(sum / static_cast<double>(count) + static_cast<double>(epsilon));
}

template <class Out>
HWY_INLINE void RmsNormRow(const NormTask& task, size_t row) {
  const float* x = task.x.row(row);
  const size_t count = task.x.cols;
  const double squares =
      SumRow(x, count, 0.0f, [](D sum, D values) { return hn::MulAdd(values, values, sum); });
  const V scale = Constant(static_cast<float>(InverseDeviation(squares, count, task.epsilon)));
  MapRow(x, task.weight, static_cast<Out*>(task.out.data) + row * task.out.stride, count, 0.0f,
         [&](V value, V weight) { return hn::Mul(hn::Mul(value, scale), weight); });
}

template <class Out>
HWY_INLINE void LayerNormRow(const NormTask& task, size_t row, float* centred) {
  const float* x = task.x.row(row);
  const size_t count = task.x.cols;
  const double mean = SumRow(x, count, 0.0f, [](D sum, D values) { return hn::Add(sum, values); }) /
                      static_cast<double>(count);
  const D mean_d = hn::Set(Doubles(), mean);
  // Elements past the end are the mean as f32: what that leaves, 2^-24 of the mean, is not nothing
  // but is the same for every row of these values.
  const float pad = static_cast<float>(mean);
  const double excess = (double{pad} - mean) * (double{pad} - mean) *
                        static_cast<double>((kPartials - count % kPartials) % kPartials);
  const double squares = SumRow(x, count, pad, [&](D sum, D values) {
    const D difference = hn::Sub(values, mean_d);
    return hn::MulAdd(difference, difference, sum);
  });
  const double variance = squares > excess || std::isnan(squares) ? squares - excess : 0;
  const V scale = Constant(static_cast<float>(InverseDeviation(variance, count, task.epsilon)));
  // The mean in two parts, so that a row far from 0 keeps its digits.
  const V high = Constant(pad);
  const V low = Constant(static_cast<float>(mean - double{pad}));
  MapRow(x, task.weight, centred, count, 0.0f, [&](V value, V weight) {
    return hn::Mul(hn::Mul(hn::Sub(hn::Sub(value, high), low), scale), weight);
  });
  MapRow(centred, task.bias, static_cast<Out*>(task.out.data) + row * task.out.stride, count, 0.0f,
         [](V value, V bias) { return hn::Add(value, bias); });
}

void RmsNorm(const NormTask& task) {
  for (size_t i = 0; i < task.x.rows; ++i) {
    task.out.dtype == DType::kF32 ? RmsNormRow<float>(task, i) : RmsNormRow<BFloat16>(task, i);
  }
}

void LayerNorm(const NormTask& task, float* centred) {
  for (size_t i = 0; i < task.x.rows; ++i) {
    task.out.dtype == DType::kF32 ? LayerNormRow<float>(task, i, centred)
                                  : LayerNormRow<BFloat16>(task, i, centred);
  }
}

// Pairs (i, i + half).
HWY_INLINE void RotateHalves(const float* x, const float* cosines, const float* sines, size_t half,
                             BFloat16* out) {
  size_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const V a = hn::LoadU(Floats(), x + i);
    const V b = hn::LoadU(Floats(), x + half + i);
    const V cosine = hn::LoadU(Floats(), cosines + i);
    const V sine = hn::LoadU(Floats(), sines + i);
    StoreRounded(hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), out + i);
    StoreRounded(hn::MulAdd(a, sine, hn::Mul(b, cosine)), out + half + i);
  }
  for (; i < half; ++i) {
    out[i] = ToBFloat16(std::fma(-x[half + i], sines[i], x[i] * cosines[i]));
    out[half + i] = ToBFloat16(std::fma(x[i], sines[i], x[half + i] * cosines[i]));
  }
}

// Pairs (2i, 2i + 1).
HWY_INLINE void RotateInterleaved(const float* x, const float* cosines, const float* sines,
                                  size_t half, BFloat16* out) {
  const hn::RebindToUnsigned<Floats> du;
  size_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    V a;
    V b;
    hn::LoadInterleaved2(Floats(), x + 2 * i, a, b);
    const V cosine = hn::LoadU(Floats(), cosines + i);
    const V sine = hn::LoadU(Floats(), sines + i);
    const auto first = RoundToBF16(hn::NegMulAdd(b, sine, hn::Mul(a, cosine)));
    const auto second = RoundToBF16(hn::MulAdd(a, sine, hn::Mul(b, cosine)));
    // A 32-bit word is a pair of bf16, the first in its low half.
    hn::StoreU(hn::Or(first, hn::ShiftLeft<16>(second)), du,
               reinterpret_cast<uint32_t*>(out + 2 * i));
  }
  for (; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    out[2 * i] = ToBFloat16(std::fma(-b, sines[i], a * cosines[i]));
    out[2 * i + 1] = ToBFloat16(std::fma(a, sines[i], b * cosines[i]));
  }
}

void Round(const float* x, size_t count, BFloat16* out) {
  MapRow(x, x, out, count, 0.0f, [](V value, V) { return value; });
}

void Rope(const RopeTask& task) {
  const size_t half = task.rotary_dim / 2;
  for (size_t i = 0; i < task.x.rows; ++i) {
    const float* x = task.x.row(i);
    BFloat16* out = task.out.row(i);
    const float* cosines = task.cosines + i * half;
    const float* sines = task.sines + i * half;
    for (size_t head = 0; head < task.heads; ++head) {
      task.layout == RopeLayout::kHalves ? RotateHalves(x, cosines, sines, half, out)
                                         : RotateInterleaved(x, cosines, sines, half, out);
      Round(x + task.rotary_dim, task.head_dim - task.rotary_dim, out + task.rotary_dim);
      x += task.head_dim;
      out += task.head_dim;
    }
    Round(x, task.x.cols - task.heads * task.head_dim, out);
  }
}

void Add(MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> out) {
  for (size_t i = 0; i < a.rows; ++i) {
    MapRow(a.row(i), b.row(i), out.row(i), a.cols, 0.0f, [](V x, V y) { return hn::Add(x, y); });
  }
}

void Convert(MatrixView<const BFloat16> x, const ActivationView& out) {
  for (size_t i = 0; i < x.rows; ++i) {
    float* to = static_cast<float*>(out.data) + i * out.stride;
    MapRow(x.row(i), x.row(i), to, x.cols, 0.0f, [](V value, V) { return value; });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lamina::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <vector>

namespace lamina::kernels::cpu {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(LayerNorm);
HWY_EXPORT(Rope);
HWY_EXPORT(Add);
HWY_EXPORT(Convert);
HWY_EXPORT(Round);

void RmsNormRows(const NormTask& task) { HWY_DYNAMIC_DISPATCH(RmsNorm)(task); }

void LayerNormRows(const NormTask& task) {
  thread_local std::vector<float> centred;
  centred.resize(std::max(centred.size(), task.x.cols));
  HWY_DYNAMIC_DISPATCH(LayerNorm)(task, centred.data());
}

void RopeRows(const RopeTask& task) { HWY_DYNAMIC_DISPATCH(Rope)(task); }

void AddRows(MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> out) {
  HWY_DYNAMIC_DISPATCH(Add)(a, b, out);
}

void ConvertRows(MatrixView<const BFloat16> x, const ActivationView& out) {
  if (out.dtype == DType::kF32) {
    HWY_DYNAMIC_DISPATCH(Convert)(x, out);
    return;
  }
  for (size_t i = 0; i < x.rows; ++i) {
    std::copy_n(x.row(i), x.cols, static_cast<BFloat16*>(out.data) + i * out.stride);
  }
}

void RoundElements(const float* x, size_t count, BFloat16* out) {
  HWY_DYNAMIC_DISPATCH(Round)(x, count, out);
}

}  // namespace lamina::kernels::cpu
#endif
