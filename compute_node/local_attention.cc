// SPDX-License-Identifier: Apache-2.0
#include "compute_node/local_attention.h"

#include "common/status_macros.h"

namespace lamina::compute_node {

absl::Status LocalAttention::Attend(Lane& lane) {
  const size_t rows = lane.positions.size();
  const auto qkv = context_.executor.DeviceQkvRows(lane.slice, rows, lane.buffers);
  const auto out = context_.executor.DeviceAttentionRows(lane.slice, rows, lane.buffers);
  LAMINA_RETURN_IF_ERROR(kv_.Store(lane.index, lane.slice, qkv));
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kStore, lane.slice);
  LAMINA_ASSIGN_OR_RETURN(const uint64_t read, kv_.Attend(lane.index, lane.slice, qkv, out));
  telemetry::AddTo(context_.counters.kv_bytes_read, read);
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kAttend, lane.slice);
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
