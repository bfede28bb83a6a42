// SPDX-License-Identifier: Apache-2.0
//
// The arithmetics of attention that processors have besides the canonical one: which of them this
// processor is fast at, and what it attends by in each.

#pragma once

#include "absl/status/statusor.h"
#include "common/attention_arithmetic.h"
#include "kernels/attention.h"

namespace lamina::kernels {

// What this processor is to attend in where attention is chosen: tiles where it has them
// (HasTileAttention()), else pairs where it is fast at these (HasFastPairAttention()), else
// canonical. It follows from what the processor is, since it decides on bits. Probes when first
// called, which takes up to 70 ms.
AttentionArithmetic FastAttention();

// Asks the system for the tiles of AMX, where the processor has them; FastAttention() does so too.
// To be called before threads start: the system refuses where one of them has a signal stack on
// which tiles have no room. A node with dense layers calls AskForTiles() instead (kernels/dense.h).
void AskForAttentionTiles();

// What a processor attends by in that arithmetic, where `canonical` is its canonical kernel. Warns
// once of each that is emulated.
// Errors: kInvalidArgument  an arithmetic of other devices.
absl::StatusOr<const AttentionKernel*> AttentionOfProcessor(AttentionArithmetic arithmetic,
                                                            const AttentionKernel& canonical);

}  // namespace lamina::kernels
