// SPDX-License-Identifier: Apache-2.0
//
// AttentionDescriptor: what one attention op computes, apart from its data. Models fill it, kernels
// take it; it travels to memory nodes when the cluster is configured.

#pragma once

#include <cstdint>

namespace lamina {

struct AttentionDescriptor {
  uint32_t query_heads = 0;  // Hq
  uint32_t kv_heads = 0;     // Hkv; divides Hq
  uint32_t head_dim = 0;     // dh, elements; a multiple of 16 in [16, 256]
  float scale = 0.0f;        // Multiplies q.k; usually 1/sqrt(head_dim).

  // Sliding window, tokens: position p attends to (p - window, p]. 0 means all tokens up to p.
  uint32_t window = 0;

  // Logit soft cap: s becomes cap * tanh(s / cap) before the softmax. 0 means none.
  float soft_cap = 0.0f;

  uint32_t group() const { return query_heads / kv_heads; }
  uint32_t q_width() const { return query_heads * head_dim; }
  uint32_t kv_width() const { return kv_heads * head_dim; }
  // Width of a row [q | k | v].
  uint32_t qkv_width() const { return q_width() + 2 * kv_width(); }

  friend bool operator==(const AttentionDescriptor&, const AttentionDescriptor&) = default;
};

}  // namespace lamina
