// SPDX-License-Identifier: Apache-2.0
//
// OwnSlices: runs what a node has of a step by itself, for those who measure it: the slices of its
// stage one after the other, and the end of the step. Where shards sum parts, the others' are taken
// to be its own: what is measured is its own work, sums included, without the way there and back.
//
// Threading: one thread.
// Memory:    value buffers of a batch, and of its logits.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute_node/slice_executor.h"
#include "compute_node/value_buffers.h"

namespace lamina::compute_node {

// What of a step a node runs.
struct SliceRange {
  uint32_t first = 0;
  uint32_t end = UINT32_MAX;  // At most all that have an attention behind them.
  bool tail = true;           // The end of the step behind its last slice: the last MLP,
  bool head = true;           // and the LM head, which shard 0 has.
  size_t shards = 1;          // That sum with it, itself included.
};

class OwnSlices {
 public:
  // The executor must outlive this. Requires: the weights of the range are there; first < end.
  OwnSlices(SliceExecutor& executor, const SliceRange& range);

  // For batches of up to `rows_max` rows, at most LmHead::kRows. Errors: those of the device.
  absl::Status Prepare(size_t rows_max);

  const SliceRange& range() const { return range_; }
  kernels::ComputeDevice& device() const { return executor_.device(); }

  // The next batch has so many rows. Errors: those of the device.
  absl::Status SetRows(size_t rows);

  // Runs the next slice of a batch; the first one of the model, which is shorter than the others,
  // only where there is no other. Errors: those of the device.
  absl::Status RunNext();
  // Runs the end of a step. Requires: range().tail.
  absl::Status RunTail();

 private:
  absl::Status RunBody(uint32_t slice);
  absl::Status RunSum(uint32_t slice, size_t reduce);

  SliceExecutor& executor_;
  const SliceRange range_;
  ValueBuffers buffers_;
  ValueBuffers tail_;
  std::vector<std::byte> part_;      // The own part of a sum, on the host: [rows, width] f32.
  std::vector<const float*> parts_;  // It, in each shard's place.
  std::vector<uint32_t> row_ids_;    // 0, 1, 2, ...
  std::vector<uint32_t> zeros_;
  size_t rows_ = 0;
  uint32_t next_ = 0;
};

}  // namespace lamina::compute_node
