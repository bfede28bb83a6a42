// SPDX-License-Identifier: Apache-2.0
//
// WeighedAttention: attends items, and of those that ask for it adds up what softmax gave each
// token, over all query heads (kernels/attention_weights.h).
//
// Threading: the data thread; the pool is the only parallelism. Allocation: working memory grows up
// to what a call needs, some MiB.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/thread_pool.h"
#include "kernels/attention.h"

namespace lamina::compute_node {

class WeighedAttention {
 public:
  struct Item {
    kernels::AttentionItem attention;
    // Not null: the weights of the tokens that each of its queries sees are added here.
    // Shape: [query_tokens, up to the tokens that it sees], `stride` floats between queries.
    float* weights = nullptr;
    size_t stride = 0;
  };

  // Items of at most `query_tokens_max` queries, sequences of `context_tokens_max` tokens, layers
  // of which the shapes are parts. References must outlive this.
  WeighedAttention(const kernels::AttentionKernel& kernel, ThreadPool& pool,
                   absl::Span<const AttentionDescriptor> layers, uint32_t query_tokens_max,
                   uint32_t context_tokens_max);

  // The outputs have the bits that the kernel gives them without weights.
  void Attend(const AttentionDescriptor& shape, const kernels::KvView& kv,
              absl::Span<const Item> items);

 private:
  // Queries of a weighed item that attend in one call of the kernel.
  static constexpr uint32_t kQueriesAtOnce = 16;
  // Floats of weights in one call, unless a single piece has more.
  static constexpr size_t kFloatsAtOnce = size_t{1} << 20;

  // Consecutive queries of an item.
  struct Piece {
    const Item* item = nullptr;
    uint32_t first = 0;
    uint32_t count = 0;
    size_t memory = 0;  // Where its weights begin.
    uint32_t tokens() const { return item->attention.first_position + first + count; }
  };

  // The pieces, whose weights take so many floats.
  void Run(const AttentionDescriptor& shape, const kernels::KvView& kv, size_t floats);

  const kernels::AttentionKernel& kernel_;
  ThreadPool& pool_;
  std::unique_ptr<kernels::AttentionScratch> scratch_;
  std::vector<Piece> pieces_;  // Pieces of one call of the kernel.
  std::vector<kernels::AttentionItem> calls_;
  std::vector<kernels::AttentionWeights> weights_;  // By piece.
  std::vector<float> memory_;
};

}  // namespace lamina::compute_node
