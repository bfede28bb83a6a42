// SPDX-License-Identifier: Apache-2.0
//
// DType and BFloat16: the element types that cross our interfaces.
//
// Files have many more types (GGUF's quantised ones); model/ turns those into these at load.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace lamina {

enum class DType : uint8_t { kF32, kBF16 };

constexpr size_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
constexpr absl::string_view DTypeName(DType dtype) { return dtype == DType::kF32 ? "f32" : "bf16"; }

// The upper half of an IEEE binary32. A plain 16-bit word: arrays of it may be moved as bytes.
struct BFloat16 {
  uint16_t bits = 0;
};
static_assert(sizeof(BFloat16) == 2);

constexpr float ToFloat(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

// Rounds to nearest, ties to even; NaN stays NaN (quiet), overflow goes to infinity.
constexpr BFloat16 ToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  }
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace lamina
