// SPDX-License-Identifier: Apache-2.0
//
// What the drivers of attention (attention.cc, int8_attention.cc) spread over the pool: tiles, cut
// along aligned runs of blocks of the merge tree where tiles are too few or too long
// (kernels/work_cuts.h), and the partials of such runs until they are merged.
//
// A run's blocks make one partial, and the runs' partials merge as blocks do, in the tree's order:
// cutting changes no bit.
//
// Threading: tasks of one call are run by any workers; the last run of a tile that ends merges.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "hwy/aligned_allocator.h"
#include "kernels/attention.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/work_cuts.h"

namespace lamina::kernels::internal {

// One task: query tokens [first_token, first_token + query_tokens) of an item, one KV head, and
// those of the tile's blocks that lie in [first_block, end_block).
struct AttentionTask {
  size_t item = 0;
  uint32_t kv_head = 0;
  uint32_t first_token = 0;
  uint32_t query_tokens = 0;
  uint32_t first_block = 0;
  uint32_t end_block = 0;
  // Where the tile is cut: its number in the call, its runs, of which this is `piece`, and the
  // number of the first of them in the tree, counted in runs.
  size_t tile = 0;
  uint32_t pieces = 1;
  uint32_t piece = 0;
  uint32_t first_run = 0;
};

// The tasks of one call, in the order (item, KV head, tile, run). A pure function of its arguments.
class AttentionTasks {
 public:
  // Tiles of `tile_tokens` query tokens. `tasks_max`: the most where tiles are cut.
  AttentionTasks(const AttentionDescriptor& descriptor, absl::Span<const AttentionItem> items,
                 uint32_t tile_tokens, size_t threads, size_t tasks_max);

  size_t count() const { return count_; }
  size_t threads() const { return cut_.threads; }
  bool cut() const { return !cut_.whole(); }

  // Walks tasks in order of their index. Indices only grow.
  class Cursor {
   public:
    Cursor(const AttentionTasks& tasks, size_t index) : tasks_(&tasks) { Seek(index); }
    bool valid() const { return task_.item < tasks_->items_.size(); }
    const AttentionTask& task() const { return task_; }
    void Seek(size_t index);

   private:
    void SeekInTiles(size_t index);
    void NextTile();
    void Enter(uint32_t tile);

    const AttentionTasks* tasks_;
    AttentionTask task_;
    uint32_t tile_ = 0;  // Counts the tiles of one item and KV head.
    size_t passed_ = 0;  // Tasks before the item; where tiles are cut, before the tile.
  };

 private:
  struct Blocks {
    uint32_t first = 0;
    uint32_t end = 0;
  };

  uint32_t TilesOf(const AttentionItem& item) const {
    return (item.query_tokens + tile_tokens_ - 1) / tile_tokens_;
  }
  uint32_t TokensOf(const AttentionItem& item, uint32_t tile) const {
    return std::min(tile_tokens_, item.query_tokens - tile * tile_tokens_);
  }
  Blocks BlocksOf(const AttentionItem& item, uint32_t tile) const;

  const uint32_t kv_heads_;
  const uint32_t window_;
  const absl::Span<const AttentionItem> items_;
  const uint32_t tile_tokens_;
  AttentionCut cut_;
  size_t count_ = 0;
};

// How even the shares of a call are.
Shares AttentionShares(const AttentionDescriptor& descriptor, absl::Span<const AttentionItem> items,
                       uint32_t tile_tokens, size_t threads);

// Partials of runs, in the order of the vector code's stack. Memory of one scratch.
class RunPartials {
 public:
  // For tiles of at most `rows` rows of `padded_dim` floats.
  RunPartials(size_t rows, size_t padded_dim, size_t threads);

  // The most tasks that a call on so many threads may be cut into.
  static constexpr size_t TasksMax(size_t threads) { return threads == 1 ? 0 : 16 * threads; }
  size_t tasks_max() const { return arrived_.size(); }

  // Ends the run of task `index`, whose partials are on the stack. True: the tile's partials, of
  // all its runs, are on the stack, and the tile can be ended.
  bool EndRun(const AttentionTask& task, size_t index, const Tile& tile,
              void (*merge_top_two)(const Tile& tile, Workspace& work), Workspace& work);

 private:
  const size_t slot_floats_;
  const size_t lse_at_;
  std::vector<std::atomic<uint32_t>> arrived_;   // [tasks_max] runs of each tile that ended.
  hwy::AlignedFreeUniquePtr<float[]> partials_;  // [tasks_max][rows x padded_dim, then rows lse]
};

}  // namespace lamina::kernels::internal
