// SPDX-License-Identifier: Apache-2.0
//
// Weights of 8 bits, made from a matrix of floats when it is loaded: each row in groups of 64
// inputs, each group with one scale, symmetric. With a = max |w| of a group
//
//   scale = bf16(a / 127)             0 where that is below the least normal number
//   q     = round(w / scale)          to the nearest integer, ties to even; -127 to 127
//   value = bf16(q * scale)           what is multiplied
//
// in f32, each operation rounded to nearest and even; q * scale is exact. So values depend on the
// row's floats alone; a scale is never negative. A block of BlockType::kInt8 is the scale's 16 bits
// and then 32 signed bytes: two blocks are a group, and say its scale twice, so that a product
// reads memory in order. A last block of fewer inputs is completed by zeros.
//
// Threading: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace lamina::kernels {

inline constexpr size_t kInt8Group = 64;
inline constexpr size_t kInt8Block = 32;
inline constexpr size_t kInt8BlockBytes = 2 + kInt8Block;

constexpr size_t Int8RowBytes(size_t inputs) {
  return (inputs + kInt8Block - 1) / kInt8Block * kInt8BlockBytes;
}

// Writes the blocks of one row. False: a weight is not finite, or so large that its value would not
// be; what was written is then anything.
// Shapes: row     [inputs]
//         blocks  [Int8RowBytes(inputs)]
[[nodiscard]] bool QuantiseInt8(absl::Span<const float> row, uint8_t* blocks);

// values[i] = the value of input i of a row's blocks, as f32.
void Int8Values(const uint8_t* blocks, absl::Span<float> values);

}  // namespace lamina::kernels
