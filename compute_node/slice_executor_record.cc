// SPDX-License-Identifier: Apache-2.0
//
// Recorded runs: what of a slice is recorded, for how many rows, and which of these a run takes.

#include <algorithm>
#include <utility>
#include <variant>

#include "common/check.h"
#include "common/status_macros.h"
#include "compute_node/slice_executor.h"

namespace lamina::compute_node {

size_t ValueBuffers::recordings() const {
  return static_cast<size_t>(std::count_if(recorded_.begin(), recorded_.end(),
                                           [](const auto& work) { return work != nullptr; }));
}

// Between reductions, before what is sent and behind it; of the last slice its body, which all
// shards run. The rest of that is two or three calls a step and is not worth it.
void SliceExecutor::FindRanges() {
  const auto add = [this](uint32_t slice, size_t from, size_t end) {
    if (from < end) {
      ranges_.push_back({.slice = slice, .from = from, .end = end});
    }
  };
  for (uint32_t slice = 0; slice < slice_count(); ++slice) {
    const size_t end = OpsEnd(slice);
    size_t from = 0;
    while (from < end) {
      const size_t reduce = NextReduce(slice, from);
      add(slice, from, reduce);
      from = reduce + 1;
    }
    if (slice + 1 < slice_count()) {
      add(slice, end, split_.slices[slice].ops.size());
    }
  }
}

bool SliceExecutor::HasWeights(const OpRange& range) const {
  const auto ops = OpsIn(range);
  return std::all_of(ops.begin(), ops.end(), [this](const model::OpId op) {
    return !std::holds_alternative<model::LinearOp>(graph_.ops[op].body) ||
           weights_.linear(op) != nullptr;
  });
}

RowInputs SliceExecutor::DeviceRows(size_t count, ValueBuffers& buffers) const {
  const auto* const ids = reinterpret_cast<const uint32_t*>(buffers.device_ids_.data);
  return {.token_ids = {ids, count}, .positions = {ids + buffers.rows_max_, count}};
}

absl::Status SliceExecutor::Record(size_t rows_max, ValueBuffers& buffers) {
  if (device_.is_host() || rows_max == 0) {
    return absl::OkStatus();
  }
  for (const size_t rows : kRecordedRows) {
    buffers.recorded_rows_.push_back(std::min(rows, buffers.rows_max()));
    if (buffers.recorded_rows_.back() >= std::min(rows_max, buffers.rows_max())) {
      break;
    }
  }
  buffers.recorded_.resize(ranges_.size() * buffers.recorded_rows_.size());
  absl::Status status = RecordRanges(buffers);
  buffers.device_rows_ = {};
  if (!status.ok() || buffers.recordings() == 0) {
    buffers.recorded_.clear();
    buffers.recorded_rows_.clear();
  }
  return status;
}

absl::Status SliceExecutor::RecordRanges(ValueBuffers& buffers) {
  size_t place = 0;
  for (const OpRange& range : ranges_) {
    const bool runs = HasWeights(range);
    if (runs) {  // Once, so that all its kernels are loaded.
      buffers.device_rows_ = DeviceRows(1, buffers);
      RunOps(OpsIn(range), buffers);
    }
    for (const size_t rows : buffers.recorded_rows_) {
      buffers.device_rows_ = DeviceRows(rows, buffers);
      if (runs) {
        LAMINA_ASSIGN_OR_RETURN(buffers.recorded_[place],
                                device_.Record([&] { RunOps(OpsIn(range), buffers); }));
      }
      ++place;
    }
  }
  return device_.Synchronize();
}

kernels::RecordedWork* SliceExecutor::Recorded(const OpRange& range, ValueBuffers& buffers) const {
  const absl::Span<const size_t> counts = buffers.recorded_rows_;
  const auto count =
      std::lower_bound(counts.begin(), counts.end(), buffers.device_rows_.positions.size());
  if (count == counts.end()) {
    return nullptr;
  }
  const auto found = std::find(ranges_.begin(), ranges_.end(), range);
  if (found == ranges_.end()) {
    return nullptr;
  }
  const auto place = static_cast<size_t>(found - ranges_.begin()) * counts.size() +
                     static_cast<size_t>(count - counts.begin());
  return buffers.recorded_[place].get();
}

}  // namespace lamina::compute_node
