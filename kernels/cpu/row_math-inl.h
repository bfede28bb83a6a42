// SPDX-License-Identifier: Apache-2.0
//
// exp, erfc and rounding to bf16 on Highway vectors of f32, for the row kernels.
//
// Made of additions, multiplications, fused multiply-adds and divisions only, all correctly
// rounded: a lane's bits are the same on AVX2 and AVX-512, whichever lane it is.

// Highway includes this file once for each instruction set: its own guard pattern, not #pragma
// once.
#if defined(LAMINA_KERNELS_CPU_ROW_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_KERNELS_CPU_ROW_MATH_INL_H_
#undef LAMINA_KERNELS_CPU_ROW_MATH_INL_H_
#else
#define LAMINA_KERNELS_CPU_ROW_MATH_INL_H_
#endif

#include <cstring>

#include "common/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, the width that reductions are written for.
using Floats = hn::CappedTag<float, 16>;
using V = hn::Vec<Floats>;

HWY_INLINE V Constant(float value) { return hn::Set(Floats(), value); }

// exp(x), relative error below 2e-7; 0 below -87.3 (no subnormals), inf above 88.7, NaN for NaN.
HWY_INLINE V Exp(V x) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const V low = Constant(-87.33654f);
  const V high = Constant(88.72283f);
  const V clamped = hn::Min(hn::Max(x, low), high);
  const V n = hn::Round(hn::Mul(clamped, Constant(1.44269504f)));
  // ln 2 in two parts: the first has 15 bits, so n times it is exact.
  const V r = hn::NegMulAdd(n, Constant(-2.12194440e-4f),
                            hn::NegMulAdd(n, Constant(0.693359375f), clamped));
  // exp(r) = 1 + r + r^2 q(r), |r| <= ln(2) / 2: least squares on Chebyshev nodes, error 4e-9.
  V q = Constant(0x1.6d99cap-10f);
  q = hn::MulAdd(q, r, Constant(0x1.123e22p-7f));
  q = hn::MulAdd(q, r, Constant(0x1.55547cp-5f));
  q = hn::MulAdd(q, r, Constant(0x1.55548ap-3f));
  q = hn::MulAdd(q, r, Constant(0.5f));
  const V power = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), Constant(1.0f));
  // 2^n in two factors, because n reaches 128.
  const auto whole = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto scale = [&](auto exponent) {
    return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(exponent, hn::Set(di, 127))));
  };
  V result = hn::Mul(hn::Mul(power, scale(half)), scale(hn::Sub(whole, half)));
  result = hn::IfThenElse(hn::Lt(x, low), hn::Zero(d), result);
  result = hn::IfThenElse(hn::Gt(x, high), hn::Inf(d), result);
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

// erfc(z) for z >= 0, relative error below 6e-7 while the result is normal: exp(-z^2) g(t) with
// t = 1 / (1 + z/2), g by least squares on Chebyshev nodes for z in [0, 10].
HWY_INLINE V ErfcOfPositive(V z) {
  const V t = hn::Div(Constant(1.0f), hn::MulAdd(z, Constant(0.5f), Constant(1.0f)));
  V g = Constant(-0x1.ca5a08p-5f);
  g = hn::MulAdd(g, t, Constant(0x1.12e706p-2f));
  g = hn::MulAdd(g, t, Constant(-0x1.ce356ep-2f));
  g = hn::MulAdd(g, t, Constant(0x1.ddb666p-3f));
  g = hn::MulAdd(g, t, Constant(0x1.068182p-7f));
  g = hn::MulAdd(g, t, Constant(0x1.7c15dcp-3f));
  g = hn::MulAdd(g, t, Constant(0x1.fce0acp-3f));
  g = hn::MulAdd(g, t, Constant(0x1.20185ep-2f));
  g = hn::MulAdd(g, t, Constant(0x1.20f810p-2f));
  g = hn::MulAdd(g, t, Constant(-0x1.4a93eep-18f));
  // The rounding of z^2 would cost z^2 units of the last place: take it along. Beyond 11 the result
  // is 0 anyway, and inf - inf is avoided.
  const V bounded = hn::IfThenElse(hn::Gt(z, Constant(11.0f)), Constant(11.0f), z);
  const V square = hn::Mul(bounded, bounded);
  const V lost = hn::MulSub(bounded, bounded, square);
  const V gauss = Exp(hn::Neg(square));
  return hn::Mul(hn::NegMulAdd(gauss, lost, gauss), g);
}

// The bf16 of each lane in the low half of a 32-bit word: nearest, ties to even, NaN kept quiet.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<Floats>> RoundToBF16(V x) {
  const hn::RebindToUnsigned<Floats> du;
  const auto bits = hn::BitCast(du, x);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
  const auto quiet = hn::Or(high, hn::Set(du, 0x40u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
}

HWY_INLINE void StoreRounded(V x, BFloat16* HWY_RESTRICT to) {
  const hn::RebindToSigned<Floats> di;
  const hn::Rebind<uint16_t, Floats> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, RoundToBF16(x))), d16,
             reinterpret_cast<uint16_t*>(to));
}

HWY_INLINE void StoreRounded(V x, float* HWY_RESTRICT to) { hn::StoreU(x, Floats(), to); }

HWY_INLINE V LoadWidened(const BFloat16* HWY_RESTRICT from) {
  const hn::RebindToUnsigned<Floats> du;
  const hn::Rebind<uint16_t, Floats> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

HWY_INLINE V LoadWidened(const float* HWY_RESTRICT from) { return hn::LoadU(Floats(), from); }

HWY_INLINE void Fill(float value, float (&to)[hn::MaxLanes(Floats())]) {
  hn::StoreU(Constant(value), Floats(), to);
}

HWY_INLINE void Fill(float value, BFloat16 (&to)[hn::MaxLanes(Floats())]) {
  StoreRounded(Constant(value), to);
}

constexpr size_t kLanes = hn::MaxLanes(Floats());

// out[i] = f(a[i], b[i]) for i in [0, count). What does not fill a vector goes through one padded
// with `pad`, so every element takes the same instructions.
template <class A, class B, class Out, class F>
HWY_INLINE void MapRow(const A* a, const B* b, Out* out, size_t count, float pad, const F& f) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    StoreRounded(f(LoadWidened(a + i), LoadWidened(b + i)), out + i);
  }
  if (i < count) {
    A last_a[kLanes];
    B last_b[kLanes];
    Out last_out[kLanes];
    Fill(pad, last_a);
    Fill(pad, last_b);
    std::memcpy(last_a, a + i, (count - i) * sizeof(A));
    std::memcpy(last_b, b + i, (count - i) * sizeof(B));
    StoreRounded(f(LoadWidened(last_a), LoadWidened(last_b)), last_out);
    std::memcpy(out + i, last_out, (count - i) * sizeof(Out));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lamina::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
