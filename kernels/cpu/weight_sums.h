// SPDX-License-Identifier: Apache-2.0
//
// WeightSums: keeps what tiles have of softmax, and adds it up over heads
// (AttentionWeights::summed).
//
// The heads of a KV head are added when its last block has been attended, and the next tile of the
// worker keeps its own in the same memory: it lies in the worker's caches, from where memory of all
// heads of a call would be driven out by K and V before it is written again. KV heads are added in
// order, each by whichever worker ends the one that is next, so that a token's sum has the bits of
// SumWeights(). Those that end before it is their turn keep their memory until then; where all is
// in use there is more.
//
// Threading: Begin() between calls; Keep() and End() by any workers of a call. Allocation: none in
// calls without sums; else where lists and memory grow, which stay.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/types/span.h"
#include "hwy/aligned_allocator.h"
#include "kernels/attention.h"
#include "kernels/attention_weights.h"
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

  // A run of a tile's blocks begins: where sums are wanted, the tile gets memory for what it keeps,
  // which all its runs share.
  void Keep(const AttentionTask& task, size_t worker, Tile& tile);

  // All blocks of a tile have been attended, and what it keeps of them is there.
  void End(const AttentionTask& task, const Tile& tile, size_t worker);

 private:
  // How far the KV heads of some query tokens are.
  struct Order {
    uint32_t next = 0;    // KV heads before this one have been added.
    bool adding = false;  // A worker adds them.
  };
  // What one tile keeps.
  struct Kept {
    hwy::AlignedFreeUniquePtr<float[]> memory;
    size_t floats = 0;
    AttentionWeights weights;  // Over the memory; by query token and head of the tile.
    size_t worker = 0;         // The last one that had it.
  };

  size_t OrderOf(const AttentionTask& task) const {
    return first_order_[task.item] + task.first_token / tile_tokens_;
  }
  // One that nobody has, the worker's own last one if there is any. Requires: mutex_.
  Kept* Take(size_t worker);
  static void MakeRoom(const Tile& tile, Kept& kept);
  void AddKvHead(const AttentionTask& task, const Tile& tile, const AttentionWeights& weights,
                 size_t worker);

  const size_t shares_of_worker_;
  std::vector<float> shares_;  // [threads, shares_of_worker_]
  uint32_t kv_heads_ = 0;
  uint32_t tile_tokens_ = 0;
  std::vector<size_t> first_order_;  // By item: the first of its tiles among the orders.
  std::mutex mutex_;                 // Guards what follows while a call runs.
  std::vector<Order> orders_;
  std::vector<uint8_t> ended_;  // [orders, kv_heads]
  std::vector<Kept*> kept_;     // [orders, kv_heads]; null: it has not begun.
  std::vector<std::unique_ptr<Kept>> all_;
  std::vector<Kept*> free_;  // Those that no tile has, in the order in which they came back.
};

}  // namespace lamina::kernels::internal
