// SPDX-License-Identifier: Apache-2.0
//
// UnitAttention: the arithmetic of a memory node's units: K and V of rows into their slots, and
// attention of rows over all slots that they see, with the node's device.
//
// Threading: the data thread. Allocation: none per unit.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/thread_pool.h"
#include "kernels/kv_device.h"
#include "kernels/partial.h"
#include "memory_node/lane.h"
#include "memory_node/worker_counters.h"

namespace lamina::memory_node {

// Some rows of a lane that are here, with some heads.
struct RowChunk {
  uint64_t value = 0;
  uint32_t layer = 0;
  absl::Span<const Row> rows;
  HeadRange heads;  // Of those here.
  bool first = false;
  bool last = false;
  bool query_first = false;           // Their queries came first and stand together.
  const std::byte* window = nullptr;  // Where they begin in it.
};

// Which tokens of a row are attended: all, or, where queries go first, those of full blocks, and
// those behind them.
enum class Tokens : uint8_t { kAll, kClosed, kOpen };

class UnitAttention {
 public:
  // Of the heads that are here. `items_max`: of one call, without cuts. `span_tokens` is that of
  // partition token_range, else 0. References must outlive this.
  UnitAttention(const std::vector<AttentionDescriptor>& layers, uint32_t span_tokens,
                kernels::KvDevice& device, ThreadPool& pool, WorkerCounters& counters)
      : layers_(layers),
        span_tokens_(span_tokens),
        device_(device),
        pool_(pool),
        kv_bytes_read_(counters.kv_bytes_read) {}

  // Memory for calls of so many rows and items, without cuts.
  void Reserve(size_t rows, size_t items) {
    kv_rows_.reserve(rows + 1);
    items_.reserve(items);
  }
  // The same for the lane's step, whose rows have been cut into so many spans.
  void ReserveCuts(Lane& lane, size_t spans);

  // The attention of the chunk's layer over its heads.
  AttentionDescriptor ShapeOf(const RowChunk& chunk) const {
    return PartOf(layers_[chunk.layer], chunk.heads);
  }

  // Copies k and v of the chunk's rows from the window into their slots, and with the last one
  // those of prompt chunks. Returns how many bytes of the window that was. Errors: the device's.
  absl::StatusOr<size_t> Store(const Lane& lane, const Part& part, const RowChunk& chunk);

  // Whether the chunk's outputs go to the device's memory. Those that the processor merges do not.
  bool RepliesFromDevice(const Part& part, const RowChunk& chunk) const {
    return part.device_reply != nullptr && !chunk.query_first && span_tokens_ == 0;
  }

  // Attends the chunk's rows; outputs go to where part.reply_bytes are in part.reply, or
  // part.device_reply. Returns how many bytes of KV it has read. Errors: the device's.
  absl::StatusOr<uint64_t> Attend(Part& part, const RowChunk& chunk, Tokens tokens);

 private:
  uint64_t CollectItems(Part& part, const RowChunk& chunk, Tokens tokens);
  uint64_t CollectSpanRows(Part& part, const RowChunk& chunk, Tokens tokens);
  uint64_t CollectSpanItems(const Row& row, const BFloat16* q, Tokens tokens,
                            const AttentionDescriptor& shape, float*& partial);
  // unit_attention_cuts.cc
  static bool Cuts(const Row& row, const AttentionDescriptor& shape) {
    return !row.closed.empty() && shape.window == 0;
  }
  uint64_t CollectCutRow(const Row& row, const BFloat16* q, Tokens tokens,
                         const AttentionDescriptor& shape, float*& partial);
  void MergeCutRows(Part& part, const RowChunk& chunk);

  const std::vector<AttentionDescriptor>& layers_;
  const uint32_t span_tokens_;
  kernels::KvDevice& device_;
  ThreadPool& pool_;
  std::atomic<uint64_t>& kv_bytes_read_;
  std::vector<kernels::KvRows> kv_rows_;
  std::vector<kernels::AttentionItem> items_;
  std::vector<const Row*> cut_rows_;                               // Of the chunk at hand.
  std::map<uint32_t, std::vector<kernels::PartialStack>> stacks_;  // By head_dim: one a thread.
  std::vector<std::vector<float>> folded_;                         // The same: a merged head.
};

}  // namespace lamina::memory_node
