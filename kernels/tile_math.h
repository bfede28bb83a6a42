// SPDX-License-Identifier: Apache-2.0
//
// The step of the arithmetic of attention in tiles of bf16, to the bit: what the instruction
// TDPBF16PS does to one element. Defined in docs/design/attention_numerics.md; weights are those of
// kernels/pair_math.h.
//
// Callers:   kernels/reference, tests.
// Threading: pure functions. They assume the default rounding mode and no flushing of subnormals:
//            what the instruction flushes is written out here.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/pair_math.h"

namespace lamina::kernels::tiles {

// Pairs of bf16 that a step multiplies.
inline constexpr size_t kStepPairs = 16;

inline float FlushingAdd(float a, float b) {
  return pairs::FlushSubnormal(pairs::FlushSubnormal(a) + pairs::FlushSubnormal(b));
}

// A step of TDPBF16PS over words [0, kStepPairs) of a and b: the first products of the pairs summed
// in order from +0, so the second ones, both sums added, then added to `sum`.
inline float Step(float sum, const uint32_t* a, const uint32_t* b) {
  float first = 0.0f;
  float second = 0.0f;
  for (size_t i = 0; i < kStepPairs; ++i) {
    first = pairs::FlushingMultiplyAdd(std::bit_cast<float>(a[i] << 16),
                                       std::bit_cast<float>(b[i] << 16), first);
    second = pairs::FlushingMultiplyAdd(std::bit_cast<float>(a[i] & 0xffff0000u),
                                        std::bit_cast<float>(b[i] & 0xffff0000u), second);
  }
  return FlushingAdd(sum, FlushingAdd(first, second));
}

}  // namespace lamina::kernels::tiles
