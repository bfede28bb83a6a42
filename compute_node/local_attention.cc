// SPDX-License-Identifier: Apache-2.0
#include "compute_node/local_attention.h"

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/status_macros.h"
#include "compute_node/slice_stores.h"
#include "kernels/dense.h"

namespace lamina::compute_node {

void LocalAttention::PrepareLane(Lane& lane) {
  std::vector<SliceStore> stores;
  for (uint32_t slice = 0; slice < stored_by_slice_.size(); ++slice) {
    const std::optional<kernels::KvPlanes> planes = kv_.Planes(slice);
    stored_by_slice_[slice] = planes.has_value() && CanStore(context_.executor, slice);
    if (stored_by_slice_[slice]) {
      stores.push_back({.slice = slice, .planes = *planes});
    }
  }
  if (!stores.empty()) {
    StoreInto(context_.executor, stores, lane.buffers);
  }
}

absl::Status LocalAttention::BeginStep(Lane& lane, const PathRows& rows) {
  LAMINA_RETURN_IF_ERROR(kv_.BeginStep(lane, rows));
  lane.slots.resize(lane.positions.size(), kernels::kNoSlot);
  kv_.SlotsOfRows(lane.index, absl::MakeSpan(lane.slots));
  return absl::OkStatus();
}

absl::Status LocalAttention::Attend(Lane& lane) {
  const size_t rows = lane.positions.size();
  const auto qkv = context_.executor.DeviceQkvRows(lane.slice, rows, lane.buffers);
  const auto out = context_.executor.DeviceAttentionRows(lane.slice, rows, lane.buffers);
  if (!stored_by_slice_[lane.slice]) {
    LAMINA_RETURN_IF_ERROR(kv_.Store(lane.index, lane.slice, qkv));
  }
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kStore, lane.slice);
  LAMINA_ASSIGN_OR_RETURN(const uint64_t read, kv_.Attend(lane.index, lane.slice, qkv, out));
  telemetry::AddTo(context_.counters.kv_bytes_read, read);
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kAttend, lane.slice);
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
