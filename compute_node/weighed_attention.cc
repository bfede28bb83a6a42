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

size_t WeighedAttention::Piece::floats(uint32_t query_heads) const {
  const size_t all = kernels::AttentionWeights::FloatsOf(query_heads, row_floats()) * count;
  return (all + kLineFloats - 1) / kLineFloats * kLineFloats;
}

void WeighedAttention::Attend(const AttentionDescriptor& shape, const kernels::KvView& kv,
                              absl::Span<const Item> items) {
  pieces_.clear();
  const size_t floats_max = kFloatsOfThread * pool_.threads_in_use();
  size_t floats = 0;
  for (const Item& item : items) {
    const uint32_t queries = item.attention.query_tokens;
    if (item.weights == nullptr) {
      pieces_.push_back({.item = &item, .count = queries});
      continue;
    }
    for (uint32_t first = 0; first < queries; first += kQueriesAtOnce) {
      Piece piece{
          .item = &item, .first = first, .count = std::min(kQueriesAtOnce, queries - first)};
      const size_t more = piece.floats(shape.query_heads);
      if (floats > 0 && floats + more > floats_max) {
        Run(shape, kv, floats);
        floats = 0;
      }
      piece.memory = floats;
      floats += more;
      pieces_.push_back(piece);
    }
  }
  Run(shape, kv, floats);
}

void WeighedAttention::Run(const AttentionDescriptor& shape, const kernels::KvView& kv,
                           size_t floats) {
  calls_.clear();
  weights_.clear();
  weights_.reserve(pieces_.size());
  memory_.resize(std::max(memory_.size(), floats + kLineFloats));
  void* memory = memory_.data();
  size_t bytes = memory_.size() * sizeof(float);
  auto* const lines = static_cast<float*>(
      std::align(kLineFloats * sizeof(float), floats * sizeof(float), memory, bytes));
  for (const Piece& piece : pieces_) {
    kernels::AttentionItem call = piece.item->attention;
    call.first_position += piece.first;
    call.query_tokens = piece.count;
    call.q += piece.first * call.q_stride;
    call.out += piece.first * call.out_stride;
    if (piece.item->weights != nullptr) {
      kernels::AttentionWeights& weights = weights_.emplace_back(kernels::AttentionWeights::Over(
          lines + piece.memory, piece.count, shape.query_heads, piece.row_floats()));
      weights.summed = piece.item->weights + piece.first * piece.item->stride;
      weights.summed_stride = piece.item->stride;
      call.weights = &weights;
    }
    calls_.push_back(call);
  }
  kernel_.Attend(shape, kv, calls_, *scratch_, pool_);
  pieces_.clear();
}

}  // namespace lamina::compute_node
