// SPDX-License-Identifier: Apache-2.0
//
// The driver of fast attention: cuts a call into tasks (attention_tasks.h), spreads them over the
// pool, finds the slots of each block, and keeps the stream of prefetches going from one task to
// the worker's next.
#include "kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_kept.h"
#include "kernels/cpu/attention_probe.h"
#include "kernels/cpu/attention_tasks.h"
#include "kernels/cpu/weight_sums.h"

namespace lamina::kernels {
namespace {

using internal::AttentionOps;
using internal::AttentionTask;
using internal::AttentionTasks;
using internal::Block;
using internal::Tile;
using internal::Workspace;

constexpr size_t kAlignment = 64;

uint32_t TileTokens(const AttentionOps& ops, uint32_t group) {
  return std::max(1u, ops.tile_rows / group);
}

// Where the tokens of a tile lie, walked forward block by block.
class SlotCursor {
 public:
  SlotCursor() = default;
  explicit SlotCursor(absl::Span<const Extent> extents) : extents_(extents) {}

  // Fills `offsets` for tokens [first + begin, first + end), multiplied by `head_dim`. Entries
  // around them repeat the nearest of them. Sets Block::runs and Block::tiles. `first` is a
  // block's first token.
  void Fill(size_t first, size_t head_dim, size_t* offsets, Block& block) {
    constexpr uint32_t kRun = internal::kRunTokens;
    block.runs = 0;
    block.tiles = 0;
    for (uint32_t at = block.begin; at < block.end;) {
      Seek(first + at);
      const Extent& extent = extents_[index_];
      const size_t skip = first + at - passed_;
      const size_t slot = extent.first_slot + skip;
      const auto run =
          static_cast<uint32_t>(std::min<size_t>(extent.tokens - skip, block.end - at));
      // Indices that cannot wrap, and a sum in place of a product: compilers make vectors of it.
      size_t* const to = offsets + at;
      size_t offset = slot * head_dim;
      for (size_t i = 0; i < run; ++i, offset += head_dim) {
        to[i] = offset;
      }
      for (uint32_t group = at / kRun; group * kRun < at + run; ++group) {
        const uint32_t begin = std::max(block.begin, group * kRun);
        const uint32_t end = std::min(block.end, (group + 1) * kRun);
        const bool whole = begin >= at && end <= at + run;
        block.runs |= (whole && end - begin == kRun ? 1u : 0u) << group;
        block.tiles |= (whole && slot % kRun == at % kRun ? 1u : 0u) << group;
      }
      at += run;
    }
    std::fill(offsets, offsets + block.begin, offsets[block.begin]);
    std::fill(offsets + block.end, offsets + internal::kOffsets, offsets[block.end - 1]);
  }

 private:
  void Seek(size_t token) {
    LAMINA_CHECK(token >= passed_);
    while (index_ < extents_.size() && token - passed_ >= extents_[index_].tokens) {
      passed_ += extents_[index_].tokens;
      ++index_;
    }
    LAMINA_CHECK(index_ < extents_.size() && "the extents cover every token that a query may see");
  }

  absl::Span<const Extent> extents_;
  size_t index_ = 0;
  size_t passed_ = 0;  // Tokens before extents_[index_].
};

class CpuScratch final : public AttentionScratch {
 public:
  struct Worker {
    Workspace work;
    std::vector<float> floats;
    std::vector<uint32_t> words;
    size_t offsets[2][internal::kOffsets];
  };

  CpuScratch(const AttentionOps& ops, const AttentionDescriptor& d, uint32_t query_tokens_max,
             uint32_t context_tokens_max, size_t threads)
      : descriptor(d),
        query_tokens(std::min(query_tokens_max, TileTokens(ops, d.group()))),
        context_tokens(context_tokens_max),
        workers(threads),
        partials(RowsOf(query_tokens, d), (d.head_dim + 31) / 32 * 32, threads),
        sums(context_tokens_max, threads) {
    const size_t blocks = (size_t{context_tokens_max} + kBlockTokens - 1) / kBlockTokens;
    // One partial for each bit of the block count, and the one being pushed.
    const size_t levels = static_cast<size_t>(std::bit_width(blocks)) + 1;
    for (Worker& worker : workers) {
      Carve(levels, worker);
      if (ops.has_pairs) {
        CarvePairs(worker);
      }
    }
  }

  const AttentionDescriptor descriptor;
  const uint32_t query_tokens;
  const uint32_t context_tokens;
  std::vector<Worker> workers;
  internal::RunPartials partials;
  internal::WeightSums sums;

 private:
  static size_t RowsOf(uint32_t query_tokens, const AttentionDescriptor& d) {
    return std::max<size_t>(1, size_t{query_tokens} * d.group());
  }

  void Carve(size_t levels, Worker& worker) const {
    const size_t rows = RowsOf(query_tokens, descriptor);
    const size_t rows16 = (rows + 15) / 16 * 16;
    const size_t padded = (descriptor.head_dim + 31) / 32 * 32;
    const std::pair<float**, size_t> parts[] = {
        {&worker.work.q, rows * padded},
        {&worker.work.own_scores, rows * internal::kScoreStride},
        {&worker.work.k_tile, size_t{internal::kRunTokens} * descriptor.head_dim / 2},
        {&worker.work.stack, levels * rows * padded},
        {&worker.work.stack_lse, levels * rows16},
        {&worker.work.peak, rows16},
        {&worker.work.sum, rows16},
        {&worker.work.share_a, rows16},
        {&worker.work.share_b, rows16}};
    constexpr size_t kLine = kAlignment / sizeof(float);
    size_t total = kLine;
    for (const auto& [pointer, size] : parts) {
      total += (size + kLine - 1) / kLine * kLine;
    }
    // Ones: rows that pad a vector are computed with, and must be ordinary numbers.
    worker.floats.assign(total, 1.0f);
    float* at = worker.floats.data();
    at += (kAlignment - reinterpret_cast<uintptr_t>(at) % kAlignment) % kAlignment / sizeof(float);
    for (const auto& [pointer, size] : parts) {
      *pointer = at;
      at += (size + kLine - 1) / kLine * kLine;
    }
    worker.work.rows_max = rows;
    worker.work.rows16 = rows16;
  }

  void CarvePairs(Worker& worker) const {
    const size_t rows = worker.work.rows_max;
    const size_t padded = (descriptor.head_dim + 31) / 32 * 32;
    const std::pair<uint32_t**, size_t> parts[] = {
        {&worker.work.pairs.q, rows * padded / 2},
        {&worker.work.pairs.p, rows * internal::kPairStride},
        {&worker.work.pairs.k, size_t{kBlockTokens} * padded / 2},
        {&worker.work.pairs.v, size_t{kBlockTokens} * padded / 2}};
    constexpr size_t kLine = kAlignment / sizeof(uint32_t);
    size_t total = kLine;
    for (const auto& [pointer, size] : parts) {
      total += (size + kLine - 1) / kLine * kLine;
    }
    worker.words.assign(total, 0);
    uint32_t* at = worker.words.data();
    at += (kAlignment - reinterpret_cast<uintptr_t>(at) % kAlignment) % kAlignment / sizeof(*at);
    for (const auto& [pointer, size] : parts) {
      *pointer = at;
      at += (size + kLine - 1) / kLine * kLine;
    }
  }
};

// One call of Attend.
struct Call {
  const AttentionOps& ops;
  const AttentionDescriptor& descriptor;
  const KvView& kv;
  absl::Span<const AttentionItem> items;
  CpuScratch& scratch;
  const ThreadPool& pool;
  const AttentionTasks& tasks;
  std::atomic<size_t> next_task;  // Tasks below it are taken.
};

// Walks tasks and makes their tiles. Indices only grow.
class TaskCursor {
 public:
  TaskCursor(const Call& call, size_t index) : call_(call), tasks_(call.tasks, index) {
    MakeTile(index);
  }

  bool valid() const { return tasks_.valid(); }
  const AttentionTask& task() const { return tasks_.task(); }
  size_t index() const { return index_; }
  const AttentionItem& item() const { return call_.items[task().item]; }
  const Tile& tile() const { return tile_; }

  void Seek(size_t index) {
    tasks_.Seek(index);
    MakeTile(index);
  }

 private:
  void MakeTile(size_t index) {
    if (!valid()) {
      return;
    }
    index_ = index;
    const AttentionDescriptor& d = call_.descriptor;
    const size_t kv_head = task().kv_head;
    const uint32_t first = task().first_token;
    const size_t column = kv_head * d.group() * d.head_dim;
    tile_ = {
        .head_dim = d.head_dim,
        .padded_dim = (d.head_dim + 31) / 32 * 32,
        .scale = d.scale,
        .soft_cap = d.soft_cap,
        .window = d.window,
        .first_seen = item().first_seen,
        .sinks = d.sinks.empty() ? nullptr : d.sinks.data() + kv_head * d.group(),
        .group = d.group(),
        .first_position = item().first_position + first,
        .query_tokens = task().query_tokens,
        .k = call_.kv.k + kv_head * call_.kv.head_stride,
        .v = call_.kv.v + kv_head * call_.kv.head_stride,
        .q = item().q + first * item().q_stride + column,
        .q_stride = item().q_stride,
        .out = item().out == nullptr ? nullptr : item().out + first * item().out_stride + column,
        .out_stride = item().out_stride,
        .partial_stride = PartialWidth(d),
        .query_heads = d.query_heads};
    if (item().weights != nullptr) {
      tile_.weights = item().weights;
      tile_.weights_row = item().weights->row(first, static_cast<uint32_t>(kv_head * d.group()));
    }
    if (item().partial != nullptr) {
      const size_t head = size_t{first} * d.query_heads + kv_head * d.group();
      tile_.partial = item().partial + head * tile_.partial_stride;
    }
  }

  const Call& call_;
  AttentionTasks::Cursor tasks_;
  size_t index_ = 0;
  Tile tile_;
};

// Walks the blocks of a task. The offset tables alternate between two, so that the next block's is
// ready while this one is attended.
class BlockCursor {
 public:
  BlockCursor(const TaskCursor& at, size_t* offsets)
      : slots_(at.item().extents),
        first_seen_(at.tile().FirstSeen(0)),
        end_seen_(at.tile().EndSeen(at.tile().query_tokens - 1)),
        end_block_(at.task().end_block),
        head_dim_(at.tile().head_dim) {
    Fill(at.task().first_block, offsets);
  }

  const Block& block() const { return block_; }
  bool last() const { return block_.index + 1 == end_block_; }
  void Next(size_t* offsets) { Fill(block_.index + 1, offsets); }

 private:
  void Fill(uint32_t index, size_t* offsets) {
    const uint32_t first = index * kBlockTokens;
    block_.index = index;
    block_.begin = std::max(first, first_seen_) - first;
    block_.end = std::min(kBlockTokens, end_seen_ - first);
    block_.offsets = offsets;
    slots_.Fill(first, head_dim_, offsets, block_);
  }

  SlotCursor slots_;
  uint32_t first_seen_;
  uint32_t end_seen_;
  uint32_t end_block_;
  uint32_t head_dim_;
  Block block_;
};

// One worker's share: its first task, then whatever it takes, each taken when the one before has
// come to its last block.
void RunWorker(Call& call, size_t first_task, size_t worker) {
  CpuScratch::Worker& mine = call.scratch.workers[worker];
  int table = 0;
  TaskCursor next(call, first_task);
  if (!next.valid()) {
    return;
  }
  BlockCursor blocks(next, mine.offsets[table]);
  while (true) {
    Tile tile = next.tile();
    const AttentionTask task = next.task();
    const size_t index = next.index();
    const internal::KeptTile* const kept = call.scratch.sums.Keep(task, worker, tile);
    call.ops.begin(tile, mine.work);
    bool task_done = false;
    while (!task_done) {
      Block block = blocks.block();
      task_done = blocks.last();
      table ^= 1;
      if (!task_done) {
        blocks.Next(mine.offsets[table]);
      } else {
        next.Seek(call.next_task.fetch_add(1, std::memory_order_relaxed));
        if (next.valid()) {
          blocks = BlockCursor(next, mine.offsets[table]);
        }
      }
      // With nothing to come this names the block itself, which costs nothing to prefetch.
      block.next_k = next.tile().k;
      block.next_v = next.tile().v;
      block.next_offsets = blocks.block().offsets;
      block.next_begin = blocks.block().begin;
      internal::PlaceScores(kept, block.index, !task_done, mine.work);
      call.ops.block(tile, block, mine.work);
      internal::KeepSums(tile, kept, block, mine.work);
    }
    if (call.scratch.partials.EndRun(task, index, tile, call.ops.merge.merge_top_two, mine.work)) {
      call.ops.end(tile, mine.work);
      if (kept != nullptr) {
        call.scratch.sums.End(task, tile, worker);
      }
    }
    call.pool.CountStep(worker);
    if (!next.valid()) {
      return;
    }
  }
}

class CpuKernel final : public AttentionKernel {
 public:
  explicit CpuKernel(const AttentionOps& ops)
      : ops_(ops), name_(ops.has_pairs ? ops.name : std::string("highway/") + ops.name) {}

  const char* name() const override { return name_.c_str(); }

  std::unique_ptr<AttentionScratch> MakeScratch(const AttentionDescriptor& descriptor,
                                                uint32_t query_tokens_max,
                                                uint32_t context_tokens_max,
                                                size_t threads) const override {
    return std::make_unique<CpuScratch>(ops_, descriptor, query_tokens_max, context_tokens_max,
                                        threads);
  }

  void Attend(const AttentionDescriptor& descriptor, const KvView& kv,
              absl::Span<const AttentionItem> items, AttentionScratch& scratch,
              ThreadPool& pool) const override {
    auto& mine = static_cast<CpuScratch&>(scratch);
    CheckCall(descriptor, items, mine, pool);
    const AttentionTasks tasks(descriptor, items, TileTokens(ops_, descriptor.group()),
                               pool.threads_in_use(), mine.partials.tasks_max());
    const size_t workers = std::min(tasks.threads(), tasks.count());
    mine.sums.Begin(descriptor, items, TileTokens(ops_, descriptor.group()));
    Call call = {.ops = ops_,
                 .descriptor = descriptor,
                 .kv = kv,
                 .items = items,
                 .scratch = mine,
                 .pool = pool,
                 .tasks = tasks,
                 .next_task = workers};
    // One reference is all that it captures: std::function then needs no allocation.
    pool.Run(workers, [&call](size_t index, size_t worker) { RunWorker(call, index, worker); });
  }

 private:
  void CheckCall(const AttentionDescriptor& d, absl::Span<const AttentionItem> items,
                 const CpuScratch& scratch, const ThreadPool& pool) const {
    LAMINA_CHECK(d.head_dim % 16 == 0 && d.head_dim >= 16 && d.head_dim <= 256);
    LAMINA_CHECK(d.kv_heads > 0 && d.query_heads % d.kv_heads == 0);
    LAMINA_CHECK(d.head_dim == scratch.descriptor.head_dim &&
                 d.group() == scratch.descriptor.group());
    LAMINA_CHECK(pool.threads() <= scratch.workers.size());
    for (const AttentionItem& item : items) {
      LAMINA_CHECK(item.weights == nullptr || !ops_.has_pairs);
      LAMINA_CHECK(item.first_position + item.query_tokens <= scratch.context_tokens);
      LAMINA_CHECK(std::min(item.query_tokens, TileTokens(ops_, d.group())) <=
                   scratch.query_tokens);
    }
  }

  const AttentionOps& ops_;
  const std::string name_;
};

std::vector<const AttentionKernel*> MakeVariants() {
  std::vector<const AttentionKernel*> variants;
  for (const AttentionOps* ops : internal::SupportedAttentionOps()) {
    variants.push_back(new CpuKernel(*ops));  // Lives as long as the process.
  }
  return variants;
}

}  // namespace

namespace internal {

std::unique_ptr<AttentionKernel> MakeAttentionKernel(const AttentionOps& ops) {
  return std::make_unique<CpuKernel>(ops);
}

}  // namespace internal

absl::Span<const AttentionKernel* const> CpuAttentionVariants() {
  static const auto* const variants = new std::vector<const AttentionKernel*>(MakeVariants());
  return *variants;
}

const AttentionKernel& CpuAttention() {
  static const AttentionKernel& chosen = FirstThatPasses(CpuAttentionVariants());
  return chosen;
}

}  // namespace lamina::kernels
