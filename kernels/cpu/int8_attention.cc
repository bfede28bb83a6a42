// SPDX-License-Identifier: Apache-2.0
//
// The driver of fast attention over INT8: cuts a call into tasks, spreads them over the pool, and
// finds the slots of each block. As attention.cc, which has the same tasks over bf16 alone.
#include <algorithm>
#include <atomic>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "kernels/attention.h"
#include "kernels/cpu/attention_kept.h"
#include "kernels/cpu/attention_tasks.h"
#include "kernels/cpu/int8_attention_internal.h"
#include "kernels/cpu/int8_probe.h"
#include "kernels/cpu/weight_sums.h"

namespace lamina::kernels {
namespace {

using internal::AttentionTask;
using internal::AttentionTasks;
using internal::Block;
using internal::Int8Block;
using internal::Int8Ops;
using internal::Int8Segment;
using internal::Int8Tile;
using internal::Int8Workspace;
using internal::Tile;

// As attention.cc: enough rows to read a block once for many queries.
constexpr uint32_t kTileRows = 64;
constexpr size_t kAlignment = 64;

uint32_t TileTokens(uint32_t group) { return std::max(1u, kTileRows / group); }

class Int8Scratch final : public AttentionScratch {
 public:
  struct Worker {
    Int8Workspace work;
    std::vector<float> floats;
    size_t offsets[internal::kOffsets];
    uint32_t slots[kBlockTokens];
    std::vector<Int8Segment> segments;
  };

  Int8Scratch(const AttentionDescriptor& d, uint32_t query_tokens_max, uint32_t context_tokens_max,
              size_t threads)
      : head_dim(d.head_dim),
        group(d.group()),
        query_tokens(std::min(query_tokens_max, TileTokens(d.group()))),
        context_tokens(context_tokens_max),
        workers(threads),
        partials(RowsOf(query_tokens, group), (head_dim + 31) / 32 * 32, threads),
        sums(context_tokens_max, threads) {
    const size_t blocks = (size_t{context_tokens_max} + kBlockTokens - 1) / kBlockTokens;
    // One partial for each bit of the block count, and the one being pushed.
    const size_t levels = static_cast<size_t>(std::bit_width(blocks)) + 1;
    for (Worker& worker : workers) {
      Carve(levels, worker);
    }
  }

  const uint32_t head_dim;
  const uint32_t group;
  const uint32_t query_tokens;
  const uint32_t context_tokens;
  std::vector<Worker> workers;
  internal::RunPartials partials;
  internal::WeightSums sums;

 private:
  static size_t RowsOf(uint32_t query_tokens, uint32_t group) {
    return std::max<size_t>(1, size_t{query_tokens} * group);
  }

  void Carve(size_t levels, Worker& worker) const {
    const size_t rows = RowsOf(query_tokens, group);
    const size_t rows16 = (rows + 15) / 16 * 16;
    const size_t padded = (head_dim + 31) / 32 * 32;
    internal::Workspace& work = worker.work.work;
    float* k_tiles = nullptr;
    const std::pair<float**, size_t> parts[] = {
        {&work.q, rows * padded},
        {&work.own_scores, rows * internal::kScoreStride},
        {&work.k_tile, size_t{internal::kRunTokens} * head_dim / 2},
        {&work.stack, levels * rows * padded},
        {&work.stack_lse, levels * rows16},
        {&work.peak, rows16},
        {&work.sum, rows16},
        {&work.share_a, rows16},
        {&work.share_b, rows16},
        {&worker.work.k_steps, head_dim},
        {&worker.work.k_bases, head_dim},
        {&worker.work.v_steps, kBlockTokens},
        {&worker.work.v_bases, kBlockTokens},
        {&worker.work.part_scores, rows * kInt8BlockTokens},
        {&k_tiles, size_t{kInt8BlockTokens} * head_dim / sizeof(float)}};
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
    worker.work.k_tiles = reinterpret_cast<uint8_t*>(k_tiles);
    work.rows_max = rows;
    work.rows16 = rows16;
    worker.segments.reserve(kBlockTokens);
  }
};

// Finds the slots of an item's tokens, block by block.
class BlockPlaces {
 public:
  BlockPlaces(const AttentionItem& item, const Int8Tile& tile, Int8Scratch::Worker& worker)
      : item_(item), tile_(tile.tile), k_scales_(tile.int8.k_scales), worker_(worker) {}

  // Block `index`, of which some row sees a token.
  Int8Block Find(uint32_t index) {
    const uint32_t first = index * kBlockTokens;
    const uint32_t first_seen = tile_.FirstSeen(0);
    const uint32_t end_seen = tile_.EndSeen(tile_.query_tokens - 1);
    Int8Block block = {.slots = worker_.slots};
    block.all = {.index = index,
                 .begin = std::max(first, first_seen) - first,
                 .end = std::min(kBlockTokens, end_seen - first),
                 .offsets = worker_.offsets,
                 .next_k = tile_.k,
                 .next_v = tile_.v,
                 .next_offsets = worker_.offsets};
    const uint32_t int8 = item_.int8_tokens > first ? item_.int8_tokens - first : 0;
    block.int8_end = std::min(int8, block.all.end);
    if (block.all.begin < block.int8_end) {
      FindInt8(first, block);
      FindSegments(first, block);
    }
    if (block.int8_end < block.all.end) {
      FindTail(first, block.all, std::max(block.all.begin, block.int8_end));
    }
    return block;
  }

 private:
  // Whole parts, from the one that begin is in.
  void FindInt8(uint32_t first, Int8Block& block) {
    const uint32_t begin = block.all.begin / kInt8BlockTokens * kInt8BlockTokens;
    uint32_t at = begin;
    while (at < block.int8_end) {
      while (first + at - passed_ >= item_.extents[extent_].tokens) {
        passed_ += item_.extents[extent_].tokens;
        ++extent_;
        LAMINA_CHECK(extent_ < item_.extents.size() && "the extents cover every INT8 token");
      }
      const Extent& extent = item_.extents[extent_];
      const uint32_t skip = first + at - passed_;
      const uint32_t run = std::min(extent.tokens - skip, block.int8_end - at);
      for (uint32_t i = 0; i < run; ++i) {
        worker_.slots[at + i] = extent.first_slot + skip + i;
      }
      block.runs |= WholeIn(at, at + run, kInt8BlockTokens);
      if (worker_.slots[at] % kTileSlots == at % kTileSlots) {
        // Arenas have whole tiles: so has the last one, of which some tokens may not be.
        const uint32_t end = at + run;
        const auto whole = static_cast<uint32_t>(WholeTiles(end));
        block.tiles |= WholeIn(at, end < block.int8_end ? end : whole, kTileSlots);
      }
      at += run;
    }
    std::fill(worker_.slots + at, worker_.slots + WholeTiles(at), worker_.slots[at - 1]);
  }

  // Those of chosen tokens, of which the block's begin with the first.
  void FindSegments(uint32_t first, Int8Block& block) {
    worker_.segments.clear();
    while (chosen_ < item_.chosen.size() && chosen_before_ < first + block.int8_end) {
      const uint32_t end = chosen_before_ + item_.chosen[chosen_];
      if (end > first) {
        const size_t slot = item_.ScaleSlotOf(chosen_);
        worker_.segments.push_back(
            {.begin = std::max(chosen_before_, first) - first,
             .end = std::min(end - first, block.int8_end),
             .k_scales = k_scales_ + slot * Int8ScalesOfSlot(tile_.head_dim)});
      }
      if (end > first + block.int8_end) {
        break;  // Goes on in the next block.
      }
      chosen_before_ = end;
      ++chosen_;
    }
    block.segments = worker_.segments;
  }

  // A bit for each group of so many tokens that is in [begin, end) as a whole.
  static uint32_t WholeIn(uint32_t begin, uint32_t end, uint32_t tokens) {
    const uint32_t first = (begin + tokens - 1) / tokens;
    const uint32_t last = end / tokens;
    return first < last ? (1u << last) - (1u << first) : 0;
  }

  // Finds the tail's tokens [begin, block.end), which follow each other.
  void FindTail(uint32_t first, Block& block, uint32_t begin) {
    constexpr uint32_t kRun = internal::kRunTokens;
    const size_t slot = item_.tail_slot + size_t{first} + begin - item_.int8_tokens;
    for (uint32_t t = 0; t < internal::kOffsets; ++t) {
      const uint32_t near = std::clamp(t, begin, block.end - 1);
      worker_.offsets[t] = (slot + near - begin) * tile_.head_dim;
    }
    for (uint32_t t = begin / kRun * kRun; t < block.end; t += kRun) {
      const bool whole = t >= begin && t + kRun <= block.end;
      block.runs |= (whole ? 1u : 0u) << (t / kRun);
      block.tiles |= (slot % kRun == begin % kRun ? 1u : 0u) << (t / kRun);
    }
  }

  const AttentionItem& item_;
  const Tile& tile_;
  const Int8Scale* const k_scales_;  // Slot 0 of the KV head.
  Int8Scratch::Worker& worker_;
  size_t extent_ = 0;
  uint32_t passed_ = 0;         // Tokens before extents[extent_].
  size_t chosen_ = 0;           // The sequence's block at hand, of chosen tokens,
  uint32_t chosen_before_ = 0;  // and those before it.
};

// One call of Attend.
struct Call {
  const AttentionDescriptor& descriptor;
  const KvView& kv;
  absl::Span<const AttentionItem> items;
  const Int8Ops& ops;
  Int8Scratch& scratch;
  const ThreadPool& pool;
  const AttentionTasks& tasks;
  std::atomic<size_t> next_task;  // Tasks below it are taken.

  Int8Tile TileOf(const AttentionTask& task) const {
    const AttentionDescriptor& d = descriptor;
    const AttentionItem& item = items[task.item];
    const size_t kv_head = task.kv_head;
    const uint32_t first = task.first_token;
    const size_t column = kv_head * d.group() * d.head_dim;
    const size_t slots = kv_head * kv.int8->slots;  // Before the head's.
    Int8Tile made = {
        .tile = {.head_dim = d.head_dim,
                 .padded_dim = (d.head_dim + 31) / 32 * 32,
                 .scale = d.scale,
                 .soft_cap = d.soft_cap,
                 .window = d.window,
                 .first_seen = item.first_seen,
                 .sinks = d.sinks.empty() ? nullptr : d.sinks.data() + kv_head * d.group(),
                 .group = d.group(),
                 .first_position = item.first_position + first,
                 .query_tokens = task.query_tokens,
                 .k = kv.k + kv_head * kv.head_stride,
                 .v = kv.v + kv_head * kv.head_stride,
                 .q = item.q + first * item.q_stride + column,
                 .q_stride = item.q_stride,
                 .out = item.out == nullptr ? nullptr : item.out + first * item.out_stride + column,
                 .out_stride = item.out_stride,
                 .partial_stride = PartialWidth(d),
                 .query_heads = d.query_heads},
        .int8 = {.k = kv.int8->k + slots * d.head_dim,
                 .v = kv.int8->v + slots * d.head_dim,
                 .k_scales = kv.int8->k_scales +
                             kv_head * kv.int8->k_scale_slots() * Int8ScalesOfSlot(d.head_dim),
                 .v_scales = kv.int8->v_scales + slots}};
    if (item.partial != nullptr) {
      const size_t head = size_t{first} * d.query_heads + kv_head * d.group();
      made.tile.partial = item.partial + head * made.tile.partial_stride;
    }
    if (item.weights != nullptr) {
      made.tile.weights = item.weights;
      made.tile.weights_row = item.weights->row(first, static_cast<uint32_t>(kv_head * d.group()));
    }
    return made;
  }
};

// Where K of each part of a block lies, for prefetching: parts are taken to be runs.
void FindNext(const AttentionItem& item, const Int8Tile& tile, uint32_t block, Int8Block& to) {
  uint32_t token = block * kBlockTokens;
  uint32_t passed = 0;
  const Extent* extent = item.extents.begin();
  for (const uint8_t*& next : to.next_k) {
    while (extent != item.extents.end() && token - passed >= extent->tokens) {
      passed += extent->tokens;
      ++extent;
    }
    if (token >= item.int8_tokens || extent == item.extents.end()) {
      return;
    }
    next = tile.int8.k + (size_t{extent->first_slot} + token - passed) * tile.tile.head_dim;
    token += kInt8BlockTokens;
  }
}

// One worker's share: its first task, then whatever it takes, each taken when the one before has
// come to its last block.
void RunWorker(Call& call, size_t first_task, size_t worker) {
  Int8Scratch::Worker& mine = call.scratch.workers[worker];
  internal::Workspace& work = mine.work.work;
  AttentionTasks::Cursor next(call.tasks, first_task);
  for (size_t index = first_task; next.valid();) {
    const AttentionTask task = next.task();
    const size_t own_index = index;
    const AttentionItem& item = call.items[task.item];
    Int8Tile tile = call.TileOf(task);
    const internal::KeptTile* const kept = call.scratch.sums.Keep(task, worker, tile.tile);
    call.ops.begin(tile.tile, work);
    BlockPlaces places(item, tile, mine);
    for (uint32_t at = task.first_block; at < task.end_block; ++at) {
      Int8Block block = places.Find(at);
      if (at + 1 < task.end_block) {
        FindNext(item, tile, at + 1, block);
      } else {
        index = call.next_task.fetch_add(1, std::memory_order_relaxed);
        next.Seek(index);
        if (next.valid()) {
          FindNext(call.items[next.task().item], call.TileOf(next.task()), next.task().first_block,
                   block);
        }
      }
      internal::PlaceScores(kept, at, at + 1 < task.end_block, work);
      call.ops.block(tile, block, mine.work);
      internal::KeepSums(tile.tile, kept, block.all, work);
    }
    if (call.scratch.partials.EndRun(task, own_index, tile.tile, call.ops.merge_top_two, work)) {
      call.ops.end(tile.tile, work);
      if (kept != nullptr) {
        call.scratch.sums.End(task, tile.tile, worker);
      }
    }
    call.pool.CountStep(worker);
  }
}

class Int8Kernel final : public AttentionKernel {
 public:
  explicit Int8Kernel(const Int8Ops& ops) : ops_(ops), name_(std::string("highway/") + ops.name) {}

  const char* name() const override { return name_.c_str(); }

  std::unique_ptr<AttentionScratch> MakeScratch(const AttentionDescriptor& descriptor,
                                                uint32_t query_tokens_max,
                                                uint32_t context_tokens_max,
                                                size_t threads) const override {
    return std::make_unique<Int8Scratch>(descriptor, query_tokens_max, context_tokens_max, threads);
  }

  void Attend(const AttentionDescriptor& descriptor, const KvView& kv,
              absl::Span<const AttentionItem> items, AttentionScratch& scratch,
              ThreadPool& pool) const override {
    auto& mine = static_cast<Int8Scratch&>(scratch);
    CheckCall(descriptor, kv, items, mine, pool);
    const AttentionTasks tasks(descriptor, items, TileTokens(descriptor.group()),
                               pool.threads_in_use(), mine.partials.tasks_max());
    const size_t workers = std::min(tasks.threads(), tasks.count());
    mine.sums.Begin(descriptor, items, TileTokens(descriptor.group()));
    Call call = {.descriptor = descriptor,
                 .kv = kv,
                 .items = items,
                 .ops = ops_,
                 .scratch = mine,
                 .pool = pool,
                 .tasks = tasks,
                 .next_task = workers};
    // One reference is all that it captures: std::function then needs no allocation.
    pool.Run(workers, [&call](size_t index, size_t worker) { RunWorker(call, index, worker); });
  }

 private:
  static void CheckCall(const AttentionDescriptor& d, const KvView& kv,
                        absl::Span<const AttentionItem> items, const Int8Scratch& scratch,
                        const ThreadPool& pool) {
    LAMINA_CHECK(kv.int8 != nullptr);
    LAMINA_CHECK(d.head_dim % 16 == 0 && d.head_dim >= 16 && d.head_dim <= 256);
    LAMINA_CHECK(d.kv_heads > 0 && d.query_heads % d.kv_heads == 0);
    LAMINA_CHECK(d.head_dim == scratch.head_dim && d.group() == scratch.group);
    LAMINA_CHECK(pool.threads() <= scratch.workers.size());
    for (const AttentionItem& item : items) {
      LAMINA_CHECK(!item.chosen.empty() || item.int8_tokens % kInt8BlockTokens == 0);
      LAMINA_CHECK(item.int8_tokens <= item.first_position + 1);
      LAMINA_CHECK(item.first_position + item.query_tokens <= scratch.context_tokens);
      LAMINA_CHECK(std::min(item.query_tokens, TileTokens(d.group())) <= scratch.query_tokens);
    }
  }

  const Int8Ops& ops_;
  const std::string name_;
};

std::vector<const AttentionKernel*> MakeVariants() {
  std::vector<const AttentionKernel*> variants;
  for (const Int8Ops* ops : internal::SupportedInt8Ops()) {
    variants.push_back(new Int8Kernel(*ops));  // Lives as long as the process.
  }
  return variants;
}

}  // namespace

absl::Span<const AttentionKernel* const> CpuInt8AttentionVariants() {
  static const auto* const variants = new std::vector<const AttentionKernel*>(MakeVariants());
  return *variants;
}

const AttentionKernel& CpuInt8Attention() {
  static const AttentionKernel& chosen = FirstInt8ThatPasses(CpuInt8AttentionVariants());
  return chosen;
}

}  // namespace lamina::kernels
