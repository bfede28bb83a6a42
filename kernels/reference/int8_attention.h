// SPDX-License-Identifier: Apache-2.0
//
// What attention over INT8 K and V is: the definition in real numbers, as loops in double, written
// to be read next to docs/design/attention_numerics.md#int8. Which bits f32 makes of it is defined
// by int8_kv.h and by ReferenceAttention(), which a test compares with this.
//
// The query at position p sees K and V of token t <= p as bf16 if t stands in p's own block of 64,
// and else as INT8: of K one channel of a block has one scale, of V one token. That follows from p
// and from K and V as they were made, and from nothing else.
//
// Threading: pure functions.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"

namespace lamina::kernels {

// K and V of a sequence's tokens as queries of one block see them.
// Shapes: k, v  [tokens, kv_heads, head_dim]
struct SeenKv {
  uint32_t int8_tokens = 0;  // So many first ones have gone through INT8.
  std::vector<double> k;
  std::vector<double> v;
};

// What the query at `position` sees; so does every other query of its block.
// Shapes: k, v  [tokens, kv_heads, head_dim], of a layer, position 0 first
// Requires: position < tokens.
SeenKv SeeFrom(const AttentionDescriptor& layer, uint32_t position, absl::Span<const BFloat16> k,
               absl::Span<const BFloat16> v);

// The attention of the query at `position`.
// Shapes: q  [query_heads, head_dim];  result  [query_heads, head_dim]
// Requires: `seen` is what the position sees.
std::vector<double> AttendSeen(const AttentionDescriptor& layer, const SeenKv& seen,
                               uint32_t position, absl::Span<const BFloat16> q);

}  // namespace lamina::kernels
