// SPDX-License-Identifier: Apache-2.0
//
// Canonical scalar math of attention: exp, ln, tanh and the sum of 16 lanes, to the bit.
//
// Every instruction set must give the same bits, so nothing here calls the C library: only IEEE
// additions, products, divisions and fused multiply-adds in a written order. The vector kernels
// repeat these functions operation by operation with the constants below; a test compares them.
// Defined in docs/design/attention_numerics.md, which also argues the errors.
//
// Callers:   kernels/reference, kernels/partial.cc, kernels/cpu.
// Threading: pure functions. They assume the default rounding mode and no flushing of subnormals.

#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/dtype.h"

namespace lamina::kernels::canonical {

// Virtual lanes of every sum, whatever the width of the machine's vectors.
inline constexpr size_t kLanes = 16;

// exp(x) below this is 0: nothing that a sum of at least 1 could notice, and no subnormals.
inline constexpr float kExpFloor = -86.0f;
inline constexpr float kLog2E = 1.44269504f;
// Adding it to a small number leaves the nearest integer in the low bits: 1.5 * 2^23.
inline constexpr float kRoundMagic = 12582912.0f;
// ln 2 in two parts; the first has 9 significant bits, so its product with an exponent is exact.
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
// exp(r) = 1 + r + r^2 Q(r), |r| <= ln(2)/2; minimax of relative error 3.1e-9. Highest power first.
inline constexpr float kExpQ[5] = {0.0013814597623422742f, 0.0083687175065279f,
                                   0.04166838899254799f, 0.1666652113199234f, 0.4999999403953552f};
// ln(1+f) = f - f^2/2 + f^3 R(f), sqrt(1/2) <= 1+f < sqrt(2); minimax, 6.9e-9.
inline constexpr float kLogR[7] = {
    0.0867212787270546f,  -0.14379018545150757f, 0.14978016912937164f, -0.16564424335956573f,
    0.19954873621463776f, -0.250016987323761f,   0.33334165811538696f};
inline constexpr uint32_t kSqrtHalfBits = 0x3f3504f3u;
// tanh(y) = y + y z T(z), z = y^2, |y| < kTanhSmall; minimax, 4.1e-9.
inline constexpr float kTanhT[5] = {-0.00571703165769577f, 0.020650574937462807f,
                                    -0.05374349281191826f, 0.13331490755081177f,
                                    -0.3333328366279602f};
inline constexpr float kTanhSmall = 0.625f;

// e^x. Requires: x <= 0 or NaN. exp(0) == 1 exactly; NaN gives NaN.
inline float Exp(float x) {
  const float clamped = x < kExpFloor ? kExpFloor : x;
  const float t = std::fma(clamped, kLog2E, kRoundMagic);
  const float n = t - kRoundMagic;
  float r = std::fma(n, -kLn2High, clamped);
  r = std::fma(n, -kLn2Low, r);
  float y = kExpQ[0];
  for (int i = 1; i < 5; ++i) {
    y = std::fma(y, r, kExpQ[i]);
  }
  y = std::fma(y, r, 1.0f);
  y = std::fma(y, r, 1.0f);
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(t) << 23) + 0x3f800000u);
  y = y * power;
  return x < kExpFloor ? 0.0f : y;
}

// ln x. Requires: x finite and >= 1, or NaN. ln(1) == +0 exactly; NaN gives NaN.
inline float Log(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const int32_t exponent = static_cast<int32_t>(bits - kSqrtHalfBits) >> 23;
  const float f = std::bit_cast<float>(bits - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  const float e = static_cast<float>(exponent);
  float r = kLogR[0];
  for (int i = 1; i < 7; ++i) {
    r = std::fma(r, f, kLogR[i]);
  }
  float y = (f * f) * std::fma(f, r, -0.5f);
  y = std::fma(e, kLn2Low, y);
  y = f + y;
  y = std::fma(e, kLn2High, y);
  return x != x ? x : y;
}

// tanh y, odd; NaN gives NaN.
inline float Tanh(float y) {
  const float a = std::fabs(y);
  const float z = y * y;
  float t = kTanhT[0];
  for (int i = 1; i < 5; ++i) {
    t = std::fma(t, z, kTanhT[i]);
  }
  const float small = std::fma(y * z, t, y);
  const float e = Exp(-2.0f * a);
  const float large = std::copysign((1.0f - e) / (1.0f + e), y);
  return a < kTanhSmall ? small : large;
}

// Lanes of a score; see docs/design/attention_numerics.md.
inline constexpr size_t kScoreLanes = 4;

inline float SumScoreLanes(const float* lanes) {
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

// The sum of 16 lanes: in each quad (l0 + l2) + (l1 + l3), then the quads (Q0 + Q2) + (Q1 + Q3).
inline float SumLanes(const float* lanes) {
  float quads[4];
  for (size_t i = 0; i < 4; ++i) {
    const float* l = lanes + 4 * i;
    quads[i] = (l[0] + l[2]) + (l[1] + l[3]);
  }
  return (quads[0] + quads[2]) + (quads[1] + quads[3]);
}

// Nearest bf16, ties to even. Every NaN becomes 0x7fc0: which NaN an operation returns depends on
// the order of its operands, and that order belongs to the compiler.
inline BFloat16 RoundOutput(float x) { return x != x ? BFloat16{0x7fc0u} : ToBFloat16(x); }

}  // namespace lamina::kernels::canonical
