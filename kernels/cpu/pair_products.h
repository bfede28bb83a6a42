// SPDX-License-Identifier: Apache-2.0
//
// Which of two loops multiplies bf16 faster on this processor: oneDNN's, whose instruction takes
// pairs of bf16, or our own, which widens them and takes f32 multiply-adds.
//
// The choice decides the bits of a product. So it follows from what the processor is, never from a
// measurement, which two programs on one machine may see differently.

#pragma once

#include <istream>

namespace lamina::kernels::cpu {

// Whether the instruction of pairs does half the products of f32 multiply-adds. `cpuinfo` is
// Linux's /proc/cpuinfo; of a text that says nothing the answer is no. Source: ADR 0156: one
// VDPBF16PS of 512 bits in two cycles, together with two multiply-adds in each, on
//         Intel's cores since Golden Cove, which are those with AVX-512 FP16.
bool PairProductsAreSlow(std::istream& cpuinfo);

// Whether it does so on this processor, by its own /proc/cpuinfo.
bool PairProductsAreSlow();

}  // namespace lamina::kernels::cpu
