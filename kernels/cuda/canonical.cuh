// SPDX-License-Identifier: Apache-2.0
//
// The canonical scalar math of attention on the device: kernels/canonical_math.h, operation by
// operation, with its constants. Built without contraction (-fmad=false), with IEEE division and
// subnormals, so the bits are those of every other processor; a test compares them.

#pragma once

#include <cstdint>

#include "kernels/canonical_math.h"

namespace lamina::kernels::cuda {

inline constexpr float kMinusInfinity = -__builtin_inff();

__device__ inline float ExpCanonical(float x) {
  constexpr float kFloor = canonical::kExpFloor;
  constexpr float kQ0 = canonical::kExpQ[0];
  constexpr float kQ1 = canonical::kExpQ[1];
  constexpr float kQ2 = canonical::kExpQ[2];
  constexpr float kQ3 = canonical::kExpQ[3];
  constexpr float kQ4 = canonical::kExpQ[4];
  const float clamped = x < kFloor ? kFloor : x;
  const float t = fmaf(clamped, canonical::kLog2E, canonical::kRoundMagic);
  const float n = t - canonical::kRoundMagic;
  float r = fmaf(n, -canonical::kLn2High, clamped);
  r = fmaf(n, -canonical::kLn2Low, r);
  float y = kQ0;
  y = fmaf(y, r, kQ1);
  y = fmaf(y, r, kQ2);
  y = fmaf(y, r, kQ3);
  y = fmaf(y, r, kQ4);
  y = fmaf(y, r, 1.0f);
  y = fmaf(y, r, 1.0f);
  const float power = __uint_as_float((__float_as_uint(t) << 23) + 0x3f800000u);
  y = y * power;
  return x < kFloor ? 0.0f : y;
}

__device__ inline float LogCanonical(float x) {
  constexpr float kR0 = canonical::kLogR[0];
  constexpr float kR1 = canonical::kLogR[1];
  constexpr float kR2 = canonical::kLogR[2];
  constexpr float kR3 = canonical::kLogR[3];
  constexpr float kR4 = canonical::kLogR[4];
  constexpr float kR5 = canonical::kLogR[5];
  constexpr float kR6 = canonical::kLogR[6];
  const uint32_t bits = __float_as_uint(x);
  const int32_t exponent = static_cast<int32_t>(bits - canonical::kSqrtHalfBits) >> 23;
  const float f = __uint_as_float(bits - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  const float e = static_cast<float>(exponent);
  float r = kR0;
  r = fmaf(r, f, kR1);
  r = fmaf(r, f, kR2);
  r = fmaf(r, f, kR3);
  r = fmaf(r, f, kR4);
  r = fmaf(r, f, kR5);
  r = fmaf(r, f, kR6);
  float y = (f * f) * fmaf(f, r, -0.5f);
  y = fmaf(e, canonical::kLn2Low, y);
  y = f + y;
  y = fmaf(e, canonical::kLn2High, y);
  return x != x ? x : y;
}

__device__ inline float TanhCanonical(float y) {
  constexpr float kT0 = canonical::kTanhT[0];
  constexpr float kT1 = canonical::kTanhT[1];
  constexpr float kT2 = canonical::kTanhT[2];
  constexpr float kT3 = canonical::kTanhT[3];
  constexpr float kT4 = canonical::kTanhT[4];
  const float a = fabsf(y);
  const float z = y * y;
  float t = kT0;
  t = fmaf(t, z, kT1);
  t = fmaf(t, z, kT2);
  t = fmaf(t, z, kT3);
  t = fmaf(t, z, kT4);
  const float small = fmaf(y * z, t, y);
  const float e = ExpCanonical(-2.0f * a);
  const float large = copysignf((1.0f - e) / (1.0f + e), y);
  return a < canonical::kTanhSmall ? small : large;
}

// A bf16 in the lower and in the upper half of a word.
__device__ inline float LowBFloat16(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float HighBFloat16(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// Nearest bf16, ties to even; NaN stays NaN: ToBFloat16 of common/dtype.h.
__device__ inline uint16_t RoundToBFloat16(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Rounds, every NaN becoming 0x7fc0: RoundOutput of kernels/canonical_math.h.
__device__ inline uint16_t RoundOutputCanonical(float x) {
  return x != x ? uint16_t{0x7fc0u} : RoundToBFloat16(x);
}

}  // namespace lamina::kernels::cuda
