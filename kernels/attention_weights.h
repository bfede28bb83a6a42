// SPDX-License-Identifier: Apache-2.0
//
// What attention gave each token, for those who rank tokens by it: the softmax of every query head,
// which a kernel writes block by block as it goes (AttentionItem::weights), and their sum over
// heads.
//
// With m_b the largest score of block b and Z_b the sum of exp(s_i - m_b) over it, a token i of
// block b has the weight
//
//   w_i = exp(s_i - m_b) exp(m_b - M) / Z,   M = max m_b,   Z = sum_b Z_b exp(m_b - M)
//
// Sinks of a layer are left out: weights of a head sum up to 1 over its tokens.
//
// Threading: plain values.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lamina::kernels {

// Where a kernel writes. By query token and query head, both of the item.
// Shapes: weights  [query_tokens, query_heads, tokens_max] f32: exp(s_i - m_b) of token i; of those
//                  that the query sees, the others are left alone
//         peaks    [query_tokens, query_heads, blocks()] f32: m_b; of blocks that the query sees
//         sums     as peaks: Z_b
struct AttentionWeights {
  float* weights = nullptr;
  float* peaks = nullptr;
  float* sums = nullptr;
  uint32_t query_heads = 0;
  uint32_t tokens_max = 0;  // At least those of the item.
  // When set, the kernel adds the sum over heads here, with the bits of SumWeights(), and writes
  // nowhere else: it has memory of its own for the others, which are not looked at then.
  // Shape: [query_tokens, tokens that the query sees], `summed_stride` floats between queries.
  float* summed = nullptr;
  size_t summed_stride = 0;

  size_t blocks() const;
  size_t row(uint32_t token, uint32_t head) const { return size_t{token} * query_heads + head; }
  // Floats that one query token takes in all three.
  static size_t FloatsOf(uint32_t query_heads, uint32_t tokens_max);
  // Divides memory of FloatsOf() * query_tokens floats.
  static AttentionWeights Over(float* memory, uint32_t query_tokens, uint32_t query_heads,
                               uint32_t tokens_max);
};

// Adds the weights of all heads of query token `token`, which sees `tokens` tokens from 0 on, to
// `to`, head by head: plain loops, the definition of the bits.
// Requires: a kernel has written them; a head sees all of them.
// Shapes: to  [tokens]
// Cost: a pass over query_heads * tokens floats.
void SumWeights(const AttentionWeights& weights, uint32_t token, uint32_t tokens, float* to);

}  // namespace lamina::kernels
