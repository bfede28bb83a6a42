// SPDX-License-Identifier: Apache-2.0
//
// WeighedAttention: attends items, and of those that ask for it adds up what softmax gave each
// token, over all query heads (kernels/attention_weights.h).
//
// Threading: the data thread; the pool is the only parallelism. Allocation: working memory grows up
// to what a call needs, half a MiB a thread or one piece.

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
    // Shape: [query_tokens, up to the tokens that it sees], `stride` floats between queries. Items
    // do not share them.
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
  static constexpr uint32_t kLineFloats = 64 / sizeof(float);
  // Floats of weights in one call for each thread, unless a single piece has more. Calls take turns
  // in the same memory: with much more of it, K and V of a call would drive it out of the last
  // cache; with much less, threads would wait for each other and begin without prefetches more
  // often.
  static constexpr size_t kFloatsOfThread = size_t{1} << 17;

  // Consecutive queries of an item.
  struct Piece {
    const Item* item = nullptr;
    uint32_t first = 0;
    uint32_t count = 0;
    size_t memory = 0;  // Where its weights begin.

    // Floats between rows of weights: an odd number of lines, so that rows share neither lines nor
    // cache sets.
    uint32_t row_floats() const {
      const uint32_t tokens = item->attention.first_position + first + count;
      return ((tokens + kLineFloats - 1) / kLineFloats | 1) * kLineFloats;
    }
    // Whole lines that hold all that is kept of it.
    size_t floats(uint32_t query_heads) const;
  };

  // The pieces, whose weights take so many floats.
  void Run(const AttentionDescriptor& shape, const kernels::KvView& kv, size_t floats);

  const kernels::AttentionKernel& kernel_;
  ThreadPool& pool_;
  std::unique_ptr<kernels::AttentionScratch> scratch_;
  std::vector<Piece> pieces_;  // Pieces of one call of the kernel.
  std::vector<kernels::AttentionItem> calls_;
  std::vector<kernels::AttentionWeights> weights_;  // By piece that has some.
  std::vector<float> memory_;  // A line more than is needed, to begin at a border of lines.
};

}  // namespace lamina::compute_node
