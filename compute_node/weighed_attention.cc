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
  pieces_.clear();
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
      const size_t more =
          kernels::AttentionWeights::FloatsOf(shape.query_heads, piece.tokens()) * piece.count;
      if (floats > 0 && floats + more > kFloatsAtOnce) {
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
  memory_.resize(std::max(memory_.size(), floats));
  for (const Piece& piece : pieces_) {
    kernels::AttentionItem call = piece.item->attention;
    call.first_position += piece.first;
    call.query_tokens = piece.count;
    call.q += piece.first * call.q_stride;
    call.out += piece.first * call.out_stride;
    weights_.push_back(kernels::AttentionWeights::Over(memory_.data() + piece.memory, piece.count,
                                                       shape.query_heads, piece.tokens()));
    call.weights = piece.item->weights == nullptr ? nullptr : &weights_.back();
    calls_.push_back(call);
  }
  kernel_.Attend(shape, kv, calls_, *scratch_, pool_);
  pool_.Run(pieces_.size(), [this](size_t index, size_t) {
    const Piece& piece = pieces_[index];
    for (uint32_t i = 0; piece.item->weights != nullptr && i < piece.count; ++i) {
      kernels::SumWeights(weights_[index], i,
                          piece.item->attention.first_position + piece.first + i + 1,
                          piece.item->weights + (piece.first + i) * piece.item->stride);
    }
  });
  pieces_.clear();
}

}  // namespace lamina::compute_node
