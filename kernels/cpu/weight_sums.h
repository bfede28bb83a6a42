// SPDX-License-Identifier: Apache-2.0
//
// WeightSums: adds up over heads what the items of a call keep of softmax
// (AttentionWeights::summed).
//
// The heads of a KV head are added when its last block has been attended. Much of what they kept
// lies in the worker's caches then; until the end of the call K and V drive it out. KV heads are
// added in order, each by whichever worker ends the one that is next: a token's sum has the bits of
// SumWeights().
//
// Threading: Begin() between calls; End() by any workers of a call. Allocation: Begin(), where its
// lists grow; none in calls without sums.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_tasks.h"

namespace lamina::kernels::internal {

// The most heads that are added in one pass.
inline constexpr uint32_t kHeadsAdded = 8;

// Adds the weights of heads [first_head, first_head + heads) of query token `token`, which sees
// `tokens` tokens, to `to`, in the order of heads.
// Shapes: to      [tokens]
//         shares  [kHeadsAdded, blocks of `tokens`], working memory
void AddHeads(const AttentionWeights& weights, uint32_t token, uint32_t first_head, uint32_t heads,
              uint32_t tokens, float* shares, float* to);

class WeightSums {
 public:
  // Calls have sequences of at most `context_tokens_max` tokens and pools of at most `threads`
  // threads.
  WeightSums(uint32_t context_tokens_max, size_t threads);

  // A call in tiles of `tile_tokens` query tokens begins.
  void Begin(const AttentionDescriptor& descriptor, absl::Span<const AttentionItem> items,
             uint32_t tile_tokens);

  // All blocks of a tile have been attended, and what it keeps of them is there.
  void End(const AttentionTask& task, const Tile& tile, size_t worker);

 private:
  // How far the KV heads of some query tokens are.
  struct Order {
    uint32_t next = 0;    // KV heads before this one have been added.
    bool adding = false;  // A worker adds them.
  };

  void AddKvHead(const AttentionTask& task, const Tile& tile, uint32_t kv_head, size_t worker);

  const size_t shares_of_worker_;
  std::vector<float> shares_;  // [threads, shares_of_worker_]
  uint32_t kv_heads_ = 0;
  uint32_t tile_tokens_ = 0;
  std::vector<size_t> first_order_;  // By item: the first of its tiles among the orders.
  std::mutex mutex_;                 // Guards what follows while a call runs.
  std::vector<Order> orders_;
  std::vector<uint8_t> ended_;  // [orders, kv_heads]
};

}  // namespace lamina::kernels::internal
