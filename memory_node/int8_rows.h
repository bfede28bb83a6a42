// SPDX-License-Identifier: Apache-2.0
//
// Int8Rows: rows and prompts of a memory node whose slots are INT8. They are stored, attended and
// made INT8 block by block of their sequences (docs/adr/0171-int8-behind-the-open-block.md).
//
// Threading: the data thread. Allocation: until its vectors are large enough.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/attention_descriptor.h"
#include "kernels/int8_runs.h"
#include "kernels/kv_device.h"
#include "memory_node/lane.h"
#include "memory_node/sub_batch.h"

namespace lamina::memory_node {

class Int8Rows {
 public:
  // Serves the heads that are here. References must outlive this.
  Int8Rows(const std::vector<AttentionDescriptor>& layers, kernels::KvDevice& device)
      : layers_(layers), device_(device) {}

  // Whether slots are INT8: only then the others may be called.
  bool on() const { return device_.int8() != nullptr; }

  // k and v of the lane's prompts, which come with the last chunk. Errors: the device's.
  absl::Status StorePrompts(const Lane& lane, const SubBatch& chunk);

  // Stores and attends the chunk's rows. Returns how many bytes of KV it has read. Errors: the
  // device's.
  absl::StatusOr<uint64_t> Attend(const SubBatch& chunk);

  // Where queries came first, and of each sequence there is one row: what is to be done before
  // their open blocks are attended, and behind it. Errors: the device's.
  absl::Status Store(const SubBatch& chunk);
  absl::Status Close(const SubBatch& chunk);

  // Says which tokens are INT8 of an item for a row at `position`, which begins with token
  // `first_token` of its sequence.
  static void SetTokens(kernels::AttentionItem& item, const plan::SlotTables::Sequence& sequence,
                        uint32_t first_token, uint32_t position);

 private:
  AttentionDescriptor ShapeOf(const SubBatch& chunk) const {
    return PartOf(layers_[chunk.layer], chunk.heads);
  }
  kernels::Int8Run RunOf(const SubBatch& chunk, uint32_t at, uint32_t tokens) const;
  void CollectRows(const SubBatch& chunk);

  const std::vector<AttentionDescriptor>& layers_;
  kernels::KvDevice& device_;
  kernels::Int8Runs int8_runs_;
  std::vector<kernels::Int8Run> runs_;
};

}  // namespace lamina::memory_node
