// SPDX-License-Identifier: Apache-2.0
//
// AttentionArithmetic: in which arithmetic a CUDA device computes attention. Both have bits of a
// row that depend on that row alone; they are not each other's (docs/design/attention_numerics.md).

#pragma once

#include <cstdint>

namespace lamina {

enum class AttentionArithmetic : uint8_t {
  kCanonical,  // That of every processor, bit for bit.
  kTensor,     // Products on tensor cores, weights of values in bf16.
};

}  // namespace lamina
