// SPDX-License-Identifier: Apache-2.0
//
// The probe behind "the same bits on every instruction set": tests reach only the processors that
// they have run on. So before a kernel is used on this one, it attends a few small problems along
// with the reference.

#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/attention.h"

namespace lamina::kernels {

// Random problems for each loop of its own that a kernel has: head sizes 64, 128 and another, two
// to sixteen and 72 query rows a KV head, slots in order and scattered, more than a block. Takes
// some 20 ms. Errors: kInternal  other bits than `reference`; says of which problem.
absl::Status ProbeAttention(const AttentionKernel& kernel,
                            const AttentionKernel& reference = ReferenceAttention());

// The first of `kernels` that passes, else ReferenceAttention(). Warns of each that does not.
const AttentionKernel& FirstThatPasses(absl::Span<const AttentionKernel* const> kernels);

}  // namespace lamina::kernels
