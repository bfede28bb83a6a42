// SPDX-License-Identifier: Apache-2.0
//
// Int8Rows: rows and prompts of a memory node whose slots are INT8. They are stored, attended and
// made INT8 block by block of their sequences (docs/adr/0171-int8-behind-the-open-block.md).
//
// Partition token_range: a span is whole blocks, and has all of a block or nothing of it. The tail
// that a sequence has here is of whichever span its own tokens come to.
//
// Threading: the data thread. Allocation: until its vectors are large enough.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/extent.h"
#include "kernels/int8_runs.h"
#include "kernels/kv_device.h"
#include "memory_node/lane.h"
#include "memory_node/sub_batch.h"

namespace lamina::memory_node {

class Int8Rows {
 public:
  // Serves the heads that are here. `span_tokens` is that of partition token_range, else 0.
  // References must outlive this.
  Int8Rows(const std::vector<AttentionDescriptor>& layers, uint32_t span_tokens,
           kernels::KvDevice& device)
      : layers_(layers), span_tokens_(span_tokens), device_(device) {}

  // Whether slots are INT8: only then the others may be called.
  bool on() const { return device_.int8() != nullptr; }

  // k and v of the lane's prompts, which come with the last chunk. Errors: the device's.
  absl::Status StorePrompts(const Lane& lane, const SubBatch& chunk);

  // Stores and attends the chunk's rows, whose sequences are not cut. Returns how many bytes of KV
  // it has read. Errors: the device's.
  absl::StatusOr<uint64_t> Attend(const SubBatch& chunk);

  // What is to be done before rows [first, end) of the chunk attend to their open blocks, and after
  // that. Those of a sequence that bring k and v are in one block. Errors: the device's.
  absl::Status Store(const SubBatch& chunk, size_t first, size_t end);
  absl::Status Close(const SubBatch& chunk, size_t first, size_t end);

  // The end of the rows from `first` on that Store() takes together: those that bring no k and v
  // are taken all at once.
  static size_t TurnEnd(const SubBatch& chunk, size_t first);

  // Says which tokens are INT8 of an item for a row at `position`, which begins with token
  // `first_token` of its sequence.
  static void SetTokens(kernels::AttentionItem& item, const plan::SlotTables::Sequence& sequence,
                        uint32_t first_token, uint32_t position);

 private:
  AttentionDescriptor ShapeOf(const SubBatch& chunk) const {
    return PartOf(layers_[chunk.layer], chunk.heads);
  }
  // The slots of a sequence, or of one of its spans, from its token `first` on.
  struct Place {
    absl::Span<const Extent> slots;
    uint32_t first = 0;
  };
  Place PlaceOf(const plan::SlotTables::Sequence& sequence, uint32_t token) const;
  kernels::Int8Run RunOf(const SubBatch& chunk, size_t at, uint32_t tokens) const;
  void CollectRows(const SubBatch& chunk, size_t first, size_t end);

  const std::vector<AttentionDescriptor>& layers_;
  const uint32_t span_tokens_;
  kernels::KvDevice& device_;
  kernels::Int8Runs int8_runs_;
  std::vector<kernels::Int8Run> runs_;
};

}  // namespace lamina::memory_node
