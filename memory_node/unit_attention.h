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
#include "memory_node/int8_rows.h"
#include "memory_node/lane.h"
#include "memory_node/sub_batch.h"
#include "memory_node/worker_counters.h"
#include "plan/query_window.h"
#include "plan/reply_window.h"

namespace lamina::memory_node {

// Which tokens of a row are attended: all, or, where queries go first, those of full blocks, and
// those behind them.
enum class Tokens : uint8_t { kAll, kClosed, kOpen };

class UnitAttention {
 public:
  // Attends over the heads that are here. `items_max`: the most of one call, without cuts.
  // `span_tokens` is that of partition token_range, else 0. References must outlive this.
  UnitAttention(const std::vector<AttentionDescriptor>& layers, uint32_t span_tokens,
                kernels::KvDevice& device, ThreadPool& pool, WorkerCounters& counters)
      : layers_(layers),
        span_tokens_(span_tokens),
        device_(device),
        pool_(pool),
        query_tokens_max_(device.query_tokens_max()),
        kv_bytes_read_(counters.kv_bytes_read),
        int8_rows_(layers, span_tokens, device) {}

  // Memory for calls of so many rows and items, without cuts.
  void Reserve(size_t rows, size_t items) {
    kv_rows_.reserve(rows + 1);
    items_.reserve(items);
  }
  // Attends the lane's step, whose rows have been cut into so many spans, with
  // `closed_partials` of one of its parts.
  void ReserveCuts(const Lane& lane, size_t spans, std::vector<float>& closed_partials);

  // The attention of the chunk's layer over its heads.
  AttentionDescriptor ShapeOf(const SubBatch& chunk) const {
    return PartOf(layers_[chunk.layer], chunk.heads);
  }

  // Copies k and v of the chunk's rows from the window into their slots, and with the last one
  // those of prompt chunks. Where slots are INT8, rows are stored by Attend(), as each block of
  // their sequences takes its turn. Errors: the device's.
  absl::Status Store(const Lane& lane, const SubBatch& chunk);

  // Attends the chunk's rows; outputs go to chunk.outputs. Returns how many bytes of KV it has
  // read. Errors: the device's.
  absl::StatusOr<uint64_t> Attend(const SubBatch& chunk, Tokens tokens);

 private:
  uint64_t CollectItems(const SubBatch& chunk, Tokens tokens);
  uint64_t CollectSpanRows(const SubBatch& chunk, size_t first, size_t end, Tokens tokens);
  uint64_t CollectSpanItems(const SubBatch& chunk, const Row& row, const BFloat16* q,
                            Tokens tokens);
  absl::StatusOr<uint64_t> AttendSpansInTurns(const SubBatch& chunk);
  // unit_attention_cuts.cc
  static bool Cuts(const Row& row, const AttentionDescriptor& shape) {
    return !row.closed.empty() && shape.window == 0;
  }
  uint64_t CollectCutRow(const Row& row, const BFloat16* q, Tokens tokens,
                         const AttentionDescriptor& shape, float*& partial);
  void MergeCutRows(const SubBatch& chunk);

  const std::vector<AttentionDescriptor>& layers_;
  const uint32_t span_tokens_;
  kernels::KvDevice& device_;
  ThreadPool& pool_;
  const uint32_t query_tokens_max_;
  std::atomic<uint64_t>& kv_bytes_read_;
  std::vector<kernels::KvRows> kv_rows_;
  std::vector<kernels::ActivationRows> activation_rows_;
  std::vector<kernels::AttentionItem> items_;
  Int8Rows int8_rows_;
  std::vector<const Row*> cut_rows_;                               // The rows of the sub-batch.
  std::map<uint32_t, std::vector<kernels::PartialStack>> stacks_;  // By head_dim: one a thread.
  std::vector<std::vector<float>> folded_;                         // By row: a merged head.
};

}  // namespace lamina::memory_node
