// SPDX-License-Identifier: Apache-2.0
//
// Attention in pairs of bf16: the second arithmetic that processors have besides the canonical one
// (AttentionArithmetic::kPairs; docs/design/attention_numerics.md). It is fast where a processor
// has AVX-512 BF16; its bits are the same everywhere.
//
// These kernels compute all of kernels/attention.h but AttentionItem::weights (CHECKed).
//
// Threading and allocation: as kernels/attention.h.

#pragma once

#include "absl/types/span.h"
#include "kernels/attention.h"

namespace lamina::kernels {

// Plain loops, one thread, the definition of the bits.
const AttentionKernel& ReferencePairAttention();

// Whether this processor has the instruction, and gives the bits of ReferencePairAttention() by it
// (probed when first called, some 20 ms).
bool HasPairAttention();

// Whether it does, and multiplies more by the instruction than by f32 multiply-adds: not so Intel's
// cores since Golden Cove (cpu/pair_products.h).
bool HasFastPairAttention();

// The fastest on this processor with the bits of ReferencePairAttention(): without
// HasPairAttention() it emulates the instruction, many times slower than CpuAttention().
const AttentionKernel& CpuPairAttention();

// Every kernel that runs on this processor besides the reference, best first, for tests and
// benchmarks.
absl::Span<const AttentionKernel* const> CpuPairAttentionVariants();

}  // namespace lamina::kernels
