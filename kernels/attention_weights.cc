// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_weights.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"

namespace lamina::kernels {
namespace {

size_t BlocksOf(uint32_t tokens) { return (size_t{tokens} + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

size_t AttentionWeights::blocks() const { return BlocksOf(tokens_max); }

size_t AttentionWeights::FloatsOf(uint32_t query_heads, uint32_t tokens_max) {
  return query_heads * (tokens_max + 2 * BlocksOf(tokens_max));
}

AttentionWeights AttentionWeights::Over(float* memory, uint32_t query_tokens, uint32_t query_heads,
                                        uint32_t tokens_max) {
  const size_t rows = size_t{query_tokens} * query_heads;
  float* const peaks = memory + rows * tokens_max;
  return {.weights = memory,
          .peaks = peaks,
          .sums = peaks + rows * BlocksOf(tokens_max),
          .query_heads = query_heads,
          .tokens_max = tokens_max};
}

void SumWeights(const AttentionWeights& weights, uint32_t token, uint32_t tokens, float* to) {
  const size_t blocks = BlocksOf(tokens);
  for (uint32_t head = 0; head < weights.query_heads; ++head) {
    const size_t row = weights.row(token, head);
    const float* const from = weights.weights + row * weights.tokens_max;
    const float* const peaks = weights.peaks + row * weights.blocks();
    const float* const sums = weights.sums + row * weights.blocks();
    const float peak = *std::max_element(peaks, peaks + blocks);
    float all = 0;
    for (size_t block = 0; block < blocks; ++block) {
      all += sums[block] * std::exp(peaks[block] - peak);
    }
    for (size_t block = 0; block < blocks; ++block) {
      const float share = std::exp(peaks[block] - peak) / all;
      const size_t end = std::min<size_t>(tokens, (block + 1) * kBlockTokens);
      for (size_t i = block * kBlockTokens; i < end; ++i) {
        to[i] += share * from[i];
      }
    }
  }
}

}  // namespace lamina::kernels
