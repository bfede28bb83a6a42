// SPDX-License-Identifier: Apache-2.0
//
// WeightSums: keeps what tiles have of softmax, and adds it up over heads
// (AttentionWeights::summed).
//
// The heads of a KV head are added when its last block has been attended, and the next tile of the
// worker keeps its own in the same memory: it lies in the worker's caches, from where memory of all
// heads of a call would be driven out by K and V before it is written again. KV heads are added in
// order, each by whichever worker ends the one that is next, so that a token's sum has the bits of
// SumWeights(). Those that end before it is their turn keep their memory until then; where all of a
// worker's is in use it gets more.
//
// Threading: Begin() between calls; Keep() and End() by any workers of a call, none of which waits
// for another. Workers end their tiles at about the same time, and a mutex would put one of them to
// sleep for about as long as a tile of a short row takes. Allocation: none in calls without sums;
// else where lists and memory grow, which stay.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "hwy/aligned_allocator.h"
#include "kernels/attention.h"
#include "kernels/attention_weights.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_kept.h"
#include "kernels/cpu/attention_tasks.h"

namespace lamina::kernels::internal {

// The most heads that are added in one pass.
inline constexpr uint32_t kHeadsAdded = 8;
inline constexpr uint32_t kLineFloats = 64 / sizeof(float);
// Floats of the sums that are asked for before they are added to: as many lines as a core can have
// under way.
inline constexpr uint32_t kSumsAhead = 48 * kLineFloats;

// Heads that are added in one pass: rows of a tile that follow each other, and what their blocks
// have of each one's softmax.
struct HeadRows {
  const float* weights = nullptr;  // The first head's in block 0; the next's kScoreStride on.
  size_t block_floats = 0;         // From one block to the next.
  const float* shares = nullptr;   // [heads, blocks]
  size_t blocks = 0;
};

// Adds the weights of heads [first_row, first_row + heads) of a query token, which sees `tokens`
// tokens, to `to`, in the order of heads.
// Shapes: to      [tokens]
//         shares  [kHeadsAdded, blocks of `tokens`], working memory
void AddHeads(const KeptTile& kept, uint32_t first_row, uint32_t heads, uint32_t tokens,
              float* shares, float* to);

class WeightSums {
 public:
  // Calls have sequences of at most `context_tokens_max` tokens and pools of at most `threads`
  // threads.
  WeightSums(uint32_t context_tokens_max, size_t threads);

  // A call in tiles of `tile_tokens` query tokens begins.
  void Begin(const AttentionDescriptor& descriptor, absl::Span<const AttentionItem> items,
             uint32_t tile_tokens);

  // A run of a tile's blocks begins. Returns the memory for what the tile keeps, which all its runs
  // share, and takes `weights` from the tile, which is not to keep them anywhere else; null where
  // no sums are wanted. The memory is the tile's until its last run has ended.
  const KeptTile* Keep(const AttentionTask& task, size_t worker, Tile& tile);

  // All blocks of a tile have been attended, and what it keeps of them is there.
  // Requires: Keep() gave it memory.
  void End(const AttentionTask& task, const Tile& tile, size_t worker);

 private:
  // What one tile keeps. Those of other workers lie in other lines: each tile writes its own.
  struct alignas(64) Kept {
    hwy::AlignedFreeUniquePtr<float[]> memory;
    size_t floats = 0;
    KeptTile tile;
    std::atomic<bool> taken = true;  // The worker that has it takes it, whoever adds gives it back.
  };
  // A worker's own.
  struct alignas(64) Worker {
    std::vector<std::unique_ptr<Kept>> kept;
    std::vector<float> shares;  // See AddHeads().
  };
  // How far one KV head of some query tokens is. Heads of other workers lie in other lines.
  struct alignas(64) Head {
    std::atomic<Kept*> kept = nullptr;  // Null: it has not begun.
    std::atomic<bool> ended = false;
  };
  // How far all KV heads of some query tokens are.
  struct alignas(64) Order {
    // KV heads that ended since whoever adds last looked, itself among them. 0: nobody adds. Who
    // makes it 1 adds, and has what follows, until it is 0 again.
    std::atomic<uint32_t> arrived = 0;
    uint32_t next = 0;     // KV heads before this one have been added.
    uint32_t waiting = 0;  // KV heads that ended and have not been added.
  };

  size_t OrderOf(const AttentionTask& task) const {
    return first_order_[task.item] + task.first_token / tile_tokens_;
  }
  // One that no tile has: the first of the worker's, which was in use last.
  Kept* Take(size_t worker);
  static void MakeRoom(const AttentionTask& task, const Tile& tile, Kept& kept);
  // Adds the KV heads that can be added now.
  void AddThoseNext(const Tile& tile, Head* heads, size_t worker, Order& order);
  void AddKvHead(const Tile& tile, const KeptTile& kept, size_t worker);

  std::vector<Worker> workers_;
  uint32_t kv_heads_ = 0;
  uint32_t tile_tokens_ = 0;
  std::vector<size_t> first_order_;  // By item: the first of its tiles among the orders.
  std::vector<Order> orders_;        // At least those of the call.
  std::vector<Head> heads_;          // [orders, kv_heads]
};

}  // namespace lamina::kernels::internal
