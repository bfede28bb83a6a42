// SPDX-License-Identifier: Apache-2.0
//
// The vector code of attention in pairs of bf16, by what multiplies the pairs.

#pragma once

#include "kernels/cpu/attention_internal.h"

namespace lamina::kernels::internal {

// By VDPBF16PS; null where this processor or this build has none.
const AttentionOps* HardwarePairOps();

// By a plain emulation of it; null without fused multiply-add, where SupportedAttentionOps() is
// empty.
const AttentionOps* EmulatedPairOps();

}  // namespace lamina::kernels::internal
