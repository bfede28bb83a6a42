// SPDX-License-Identifier: Apache-2.0
//
// Attention of bf16 products in the tiles of AMX: a third arithmetic that processors have, next to
// the canonical one and pairs (docs/design/attention_numerics.md, "In tiles of bf16"). It is fast
// where a processor has AMX; its bits are the same everywhere.
//
// These kernels compute all of kernels/attention.h but AttentionItem::weights (CHECKed), as those
// of kernels/pair_attention.h.
//
// Threading and allocation: as kernels/attention.h. A worker holds its thread's tiles within a call
// alone.

#pragma once

#include "absl/types/span.h"
#include "kernels/attention.h"

namespace lamina::kernels {

// Plain loops, one thread, the definition of the bits.
const AttentionKernel& ReferenceTileAttention();

// Whether this processor has AMX's tiles for bf16, the system grants them, and they give the bits
// of ReferenceTileAttention(). Asks and compares when first called, which takes some 50 ms then;
// warns where there are tiles and something is wrong. The system's permission is for all threads of
// the process.
bool HasTileAttention();

// The fastest on this processor with the bits of ReferenceTileAttention(): without
// HasTileAttention() it emulates the tiles, many times slower than CpuAttention().
const AttentionKernel& CpuTileAttention();

// Every kernel that runs on this processor besides the reference, best first, for tests and
// benchmarks. Asks for the system's permission.
absl::Span<const AttentionKernel* const> CpuTileAttentionVariants();

}  // namespace lamina::kernels
