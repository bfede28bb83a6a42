// SPDX-License-Identifier: Apache-2.0
//
// AttentionArithmetic: in which arithmetic attention is computed. In both a row's bits depend on
// that row alone; they are not each other's (docs/design/attention_numerics.md).

#pragma once

#include <cstdint>

namespace lamina {

enum class AttentionArithmetic : uint8_t {
  kCanonical,  // That of every processor, bit for bit.
  kTensor,     // Products on tensor cores, weights of values in bf16. CUDA devices alone.
};

// Of a cluster: rows that decode, over the KV of memory nodes; and chunks of prompts, over the
// scratch KV of compute nodes.
struct ClusterAttention {
  AttentionArithmetic decode = AttentionArithmetic::kCanonical;
  AttentionArithmetic prefill = AttentionArithmetic::kCanonical;

  friend bool operator==(const ClusterAttention&, const ClusterAttention&) = default;
};

}  // namespace lamina
