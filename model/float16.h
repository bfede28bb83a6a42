// SPDX-License-Identifier: Apache-2.0
//
// HalfToFloat: IEEE binary16 to binary32, exactly. For readers of model files; nothing else in the
// tree computes with binary16.

#pragma once

#include <bit>
#include <cstdint>

namespace lamina::model {

// Every binary16 is a binary32; NaN keeps its payload.
constexpr float HalfToFloat(uint16_t half) {
  const uint32_t sign = (uint32_t{half} & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  }
  // Subnormal or zero: fraction * 2^-24, which a float holds exactly.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

}  // namespace lamina::model
