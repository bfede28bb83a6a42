// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention_tasks.h"

#include <algorithm>

#include "common/check.h"

namespace lamina::kernels::internal {

static_assert(kCutBlockTokens == kBlockTokens);

AttentionTasks::AttentionTasks(const AttentionDescriptor& descriptor,
                               absl::Span<const AttentionItem> items, uint32_t tile_tokens,
                               size_t threads, size_t tasks_max)
    : kv_heads_(descriptor.kv_heads),
      window_(descriptor.window),
      items_(items),
      tile_tokens_(tile_tokens) {
  AttentionLoad load;
  for (const AttentionItem& item : items) {
    for (uint32_t tile = 0; tile < TilesOf(item); ++tile) {
      const Blocks blocks = BlocksOf(item, tile);
      load.Add(kv_heads_, TokensOf(item, tile) * descriptor.group(), blocks.end - blocks.first,
               descriptor.head_dim);
    }
  }
  if (load.tiles == 0) {
    return;
  }
  cut_ = CutAttention(load, threads, tasks_max);
  count_ = load.tiles;
  if (!cut()) {
    return;
  }
  count_ = 0;
  for (const AttentionItem& item : items) {
    for (uint32_t tile = 0; tile < TilesOf(item); ++tile) {
      const Blocks blocks = BlocksOf(item, tile);
      count_ += size_t{kv_heads_} * cut_.Pieces(blocks.first, blocks.end);
    }
  }
  LAMINA_CHECK(count_ <= tasks_max);
}

// Those that some row of the tile sees.
AttentionTasks::Blocks AttentionTasks::BlocksOf(const AttentionItem& item, uint32_t tile) const {
  const uint32_t end_first = item.first_position + tile * tile_tokens_ + 1;
  const uint32_t first_seen =
      std::max(item.first_seen, window_ != 0 && end_first > window_ ? end_first - window_ : 0);
  const uint32_t end_seen = end_first + TokensOf(item, tile) - 1;
  return {.first = first_seen / kBlockTokens, .end = (end_seen - 1) / kBlockTokens + 1};
}

void AttentionTasks::Cursor::Seek(size_t index) {
  if (tasks_->cut()) {
    SeekInTiles(index);
    return;
  }
  while (valid()) {
    const AttentionItem& item = tasks_->items_[task_.item];
    const size_t tiles = tasks_->TilesOf(item);
    if (index - passed_ < tiles * tasks_->kv_heads_) {
      task_.kv_head = static_cast<uint32_t>((index - passed_) / tiles);
      Enter(static_cast<uint32_t>((index - passed_) % tiles));
      return;
    }
    passed_ += tiles * tasks_->kv_heads_;
    ++task_.item;
  }
}

// The tile's range of blocks.
void AttentionTasks::Cursor::Enter(uint32_t tile) {
  const AttentionItem& item = tasks_->items_[task_.item];
  const Blocks blocks = tasks_->BlocksOf(item, tile);
  tile_ = tile;
  task_.first_token = tile * tasks_->tile_tokens_;
  task_.query_tokens = tasks_->TokensOf(item, tile);
  task_.first_block = blocks.first;
  task_.end_block = blocks.end;
}

void AttentionTasks::Cursor::SeekInTiles(size_t index) {
  while (valid()) {
    const AttentionItem& item = tasks_->items_[task_.item];
    if (item.query_tokens == 0) {
      ++task_.item;
      continue;
    }
    Enter(tile_);
    const uint32_t log2 = tasks_->cut_.run_log2;
    task_.pieces = tasks_->cut_.Pieces(task_.first_block, task_.end_block);
    task_.first_run = task_.first_block >> log2;
    if (index - passed_ < task_.pieces) {
      task_.piece = static_cast<uint32_t>(index - passed_);
      const uint32_t run = task_.first_run + task_.piece;
      task_.first_block = std::max(task_.first_block, run << log2);
      task_.end_block = std::min(task_.end_block, (run + 1) << log2);
      return;
    }
    passed_ += task_.pieces;
    NextTile();
  }
}

void AttentionTasks::Cursor::NextTile() {
  ++task_.tile;
  if (++tile_ < tasks_->TilesOf(tasks_->items_[task_.item])) {
    return;
  }
  tile_ = 0;
  if (++task_.kv_head == tasks_->kv_heads_) {
    task_.kv_head = 0;
    ++task_.item;
  }
}

Shares AttentionShares(const AttentionDescriptor& descriptor, absl::Span<const AttentionItem> items,
                       uint32_t tile_tokens, size_t threads) {
  const AttentionTasks tasks(descriptor, items, tile_tokens, threads,
                             RunPartials::TasksMax(threads));
  std::vector<double> work;
  AttentionTasks::Cursor cursor(tasks, 0);
  for (size_t i = 0; i < tasks.count(); ++i) {
    cursor.Seek(i);
    const AttentionTask& task = cursor.task();
    AttentionLoad load;
    load.Add(1, task.query_tokens * descriptor.group(), task.end_block - task.first_block,
             descriptor.head_dim);
    work.push_back(static_cast<double>(load.work));
  }
  return ShareOut(work, tasks.threads());
}

RunPartials::RunPartials(size_t rows, size_t padded_dim, size_t threads)
    : slot_floats_((rows * padded_dim + rows + 31) / 16 * 16),
      lse_at_(rows * padded_dim),
      arrived_(TasksMax(threads)) {
  if (!arrived_.empty()) {
    partials_ = hwy::AllocateAligned<float>(arrived_.size() * slot_floats_);
    LAMINA_CHECK(partials_ != nullptr);
  }
}

bool RunPartials::EndRun(const AttentionTask& task, size_t index, const Tile& tile,
                         void (*merge_top_two)(const Tile& tile, Workspace& work),
                         Workspace& work) {
  if (task.pieces == 1) {
    return true;
  }
  while (work.depth > 1) {
    merge_top_two(tile, work);
  }
  const size_t rows = tile.rows();
  const size_t floats = rows * tile.padded_dim;
  float* const own = partials_.get() + index * slot_floats_;
  std::copy_n(work.stack, floats, own);
  std::copy_n(work.stack_lse, rows, own + lse_at_);
  std::atomic<uint32_t>& arrived = arrived_[task.tile];
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < task.pieces) {
    return false;
  }
  arrived.store(0, std::memory_order_relaxed);
  work.depth = 0;
  const float* from = own - task.piece * slot_floats_;
  for (uint32_t piece = 0; piece < task.pieces; ++piece, from += slot_floats_) {
    std::copy_n(from, floats, work.stack + work.depth * work.rows_max * tile.padded_dim);
    std::copy_n(from + lse_at_, rows, work.stack_lse + work.depth * work.rows16);
    ++work.depth;
    for (uint32_t run = task.first_run + piece; (run & 1) != 0 && work.depth > 1; run >>= 1) {
      merge_top_two(tile, work);
    }
  }
  return true;
}

}  // namespace lamina::kernels::internal
