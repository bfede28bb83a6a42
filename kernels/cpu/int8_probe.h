// SPDX-License-Identifier: Apache-2.0
//
// attention_probe.h for kernels over INT8: before one is used on this processor, it attends a few
// small problems, as the reference does.

#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/attention.h"

namespace lamina::kernels {

// Random INT8 and bf16: head sizes 64, 128 and another, one to eight query rows a KV head, slots in
// order and scattered, more than a block. Takes some 20 ms.
// Errors: kInternal  other bits than ReferenceAttention(); says of which problem.
absl::Status ProbeInt8Attention(const AttentionKernel& kernel);

// The first of `kernels` that passes, else ReferenceAttention(). Warns of each that does not.
const AttentionKernel& FirstInt8ThatPasses(absl::Span<const AttentionKernel* const> kernels);

}  // namespace lamina::kernels
