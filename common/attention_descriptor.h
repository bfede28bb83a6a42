// SPDX-License-Identifier: Apache-2.0
//
// AttentionDescriptor: what one attention op computes, apart from its data. Models fill it, kernels
// take it; it travels to memory nodes when the cluster is configured. HeadRange: some of its heads.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

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

  // Sinks: a learned score for each query head, which takes part in the softmax without a value.
  // It joins once, at the root of the merge tree. Empty for none; else [query_heads].
  std::vector<float> sinks = {};

  uint32_t group() const { return query_heads / kv_heads; }
  uint32_t q_width() const { return query_heads * head_dim; }
  uint32_t kv_width() const { return kv_heads * head_dim; }
  // Width of a row [q | k | v].
  uint32_t qkv_width() const { return q_width() + 2 * kv_width(); }

  friend bool operator==(const AttentionDescriptor&, const AttentionDescriptor&) = default;
};

// KV heads [first, first + count), with the query heads of each.
struct HeadRange {
  uint32_t first = 0;
  uint32_t count = 0;
  friend bool operator==(const HeadRange&, const HeadRange&) = default;
};

inline HeadRange AllHeads(const AttentionDescriptor& layer) { return {.count = layer.kv_heads}; }

// The heads that are in both; {0, 0} if none is.
inline HeadRange CommonHeads(HeadRange a, HeadRange b) {
  const uint32_t first = std::max(a.first, b.first);
  const uint32_t end = std::min(a.first + a.count, b.first + b.count);
  return first < end ? HeadRange{.first = first, .count = end - first} : HeadRange{};
}

// Ranges of these lengths, one after the other, from head 0 on.
inline std::vector<HeadRange> ConsecutiveRanges(const std::vector<uint32_t>& counts) {
  std::vector<HeadRange> ranges;
  uint32_t first = 0;
  for (const uint32_t count : counts) {
    ranges.push_back({.first = first, .count = count});
    first += count;
  }
  return ranges;
}

// The attention over these heads alone.
inline AttentionDescriptor PartOf(const AttentionDescriptor& layer, HeadRange heads) {
  AttentionDescriptor part = layer;
  part.query_heads = heads.count * layer.group();
  part.kv_heads = heads.count;
  if (!layer.sinks.empty()) {
    const auto first = layer.sinks.begin() + heads.first * layer.group();
    part.sinks.assign(first, first + part.query_heads);
  }
  return part;
}

}  // namespace lamina
