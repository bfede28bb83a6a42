// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of attention in pairs of bf16, to the bit: one step of the instruction VDPBF16PS,
// and weights as powers of two. Defined in docs/design/attention_numerics.md; exp, ln and tanh of
// merges and soft caps are those of kernels/canonical_math.h.
//
// Callers:   kernels/reference, kernels/cpu, tests.
// Threading: pure functions. They assume the default rounding mode and no flushing of subnormals:
//            what the instruction flushes is written out here.

#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "common/dtype.h"
#include "kernels/canonical_math.h"

namespace lamina::kernels::pairs {

// Two bf16 in a word, the first one below.
constexpr uint32_t MakePair(BFloat16 first, BFloat16 second) {
  return first.bits | uint32_t{second.bits} << 16;
}

inline constexpr uint32_t kOnes = 0x3f803f80u;  // 1 and 1.

// Subnormals to zeros of their sign, as the instruction takes its operands.
inline float FlushSubnormal(float x) {
  return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}

// sum + a * b, rounded once to f32 of unbounded exponent; then a result below 2^-126 is zero.
inline float FlushingMultiplyAdd(float a, float b, float sum) {
  a = FlushSubnormal(a);
  b = FlushSubnormal(b);
  sum = FlushSubnormal(sum);
  const float result = std::fma(a, b, sum);
  if (std::fabs(result) == 0x1p-126f) {
    // fma() rounded to multiples of 2^-149; those of 2^-150 may lie nearer. In double the sum is
    // exact wherever that matters, since products of bf16 have 16 bits.
    const double exact = double{a} * double{b} + double{sum};
    return std::fabs(exact) < 0x1p-126 - 0x1p-151 ? std::copysign(0.0f, result) : result;
  }
  return FlushSubnormal(result);
}

// A step of VDPBF16PS: sum + a's second * b's second, then + a's first * b's first.
inline float Step(float sum, uint32_t a, uint32_t b) {
  sum = FlushingMultiplyAdd(std::bit_cast<float>(a & 0xffff0000u),
                            std::bit_cast<float>(b & 0xffff0000u), sum);
  return FlushingMultiplyAdd(std::bit_cast<float>(a << 16), std::bit_cast<float>(b << 16), sum);
}

// 2^f = 1 + f P(f), |f| <= 1/2; minimax of relative error 2.9e-6, highest power first: a weight is
// rounded to bf16 right after.
inline constexpr float kPowerP[4] = {0.009582853876054287f, 0.05590643361210823f,
                                     0.24024099111557007f, 0.6931241750717163f};
// The weight of a score in its block, whose largest score is `peak`: 2^((score - peak) power) in
// bf16, and 0 where that is below 2^-126.
// Requires: score <= peak and power >= 0, or NaN somewhere, which gives NaN.
inline BFloat16 Weight(float score, float peak, float power) {
  const float y = (score - peak) * power;
  if (y != y) {
    return BFloat16{0x7fc0u};
  }
  if (y < -200.0f) {
    return BFloat16{0};
  }
  const float n = std::nearbyint(y);
  const float f = y - n;
  float p = kPowerP[0];
  for (int i = 1; i < 4; ++i) {
    p = std::fma(p, f, kPowerP[i]);
  }
  p = std::fma(p, f, 1.0f);
  // Exact in double, then rounded once.
  return ToBFloat16(FlushSubnormal(static_cast<float>(std::ldexp(double{p}, static_cast<int>(n)))));
}

}  // namespace lamina::kernels::pairs
