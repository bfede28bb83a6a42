// SPDX-License-Identifier: Apache-2.0
#include "compute_node/weighed_attention.h"

#include <algorithm>

namespace lamina::compute_node {

WeighedAttention::WeighedAttention(const kernels::AttentionKernel& kernel, ThreadPool& pool,
                                   absl::Span<const AttentionDescriptor> layers,
                                   uint32_t query_tokens_max, uint32_t context_tokens_max)
    : kernel_(kernel), pool_(pool) {
  // Scratch of the layer with most to a row serves all.
  const auto widest =
      std::max_element(layers.begin(), layers.end(),
                       [](const auto& a, const auto& b) { return a.q_width() < b.q_width(); });
  scratch_ = kernel.MakeScratch(*widest, query_tokens_max, context_tokens_max, pool.threads());
}

void WeighedAttention::Attend(const AttentionDescriptor& shape, const kernels::KvView& kv,
                              absl::Span<const Item> items) {
  calls_.clear();
  weights_.clear();
  weights_.reserve(items.size());  // Calls point into it.
  for (const Item& item : items) {
    kernels::AttentionItem& call = calls_.emplace_back(item.attention);
    if (item.weights != nullptr) {
      weights_.push_back(
          {.query_heads = shape.query_heads, .summed = item.weights, .summed_stride = item.stride});
      call.weights = &weights_.back();
    }
  }
  kernel_.Attend(shape, kv, calls_, *scratch_, pool_);
}

}  // namespace lamina::compute_node
