// SPDX-License-Identifier: Apache-2.0
//
// WeighedAttention: attends items, and of those that ask for it adds up what softmax gave each
// token, over all query heads (kernels/attention_weights.h).
//
// Threading: the data thread; the pool is the only parallelism. Allocation: lists grow up to what a
// call needs, and so does the kernel's memory of weights: of the tiles that threads are at, and of
// those that wait for their turn to be added.

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
  const kernels::AttentionKernel& kernel_;
  ThreadPool& pool_;
  std::unique_ptr<kernels::AttentionScratch> scratch_;
  // What one call of the kernel attends.
  std::vector<kernels::AttentionItem> calls_;
  std::vector<kernels::AttentionWeights> weights_;  // By item that has some.
};

}  // namespace lamina::compute_node
