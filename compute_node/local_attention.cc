// SPDX-License-Identifier: Apache-2.0
#include "compute_node/local_attention.h"

#include "common/status_macros.h"
#include "compute_node/step_layout.h"

namespace lamina::compute_node {

absl::Status LocalAttention::BeginStep(Lane& lane, const PathRows& rows) {
  kv_.BeginStep(lane.index);
  for (uint32_t row = rows.decode.first; row < rows.decode.first + rows.decode.count; ++row) {
    LAMINA_RETURN_IF_ERROR(
        kv_.AddRows(lane.index, lane.plan.rows[row].sequence, row, lane.positions[row], 1));
  }
  for (const ChunkRows& chunk : ChunksOf(lane, rows)) {
    LAMINA_RETURN_IF_ERROR(kv_.AddRows(lane.index, chunk.plan.sequence, chunk.first_row,
                                       chunk.plan.first_token, chunk.plan.tokens));
  }
  return absl::OkStatus();
}

absl::Status LocalAttention::Attend(Lane& lane) {
  const size_t rows = lane.positions.size();
  const auto qkv = context_.executor.QkvRows(lane.slice, rows, lane.buffers);
  const auto out = context_.executor.AttentionRows(lane.slice, rows, lane.buffers);
  LAMINA_RETURN_IF_ERROR(kv_.Store(lane.index, lane.slice, qkv));
  context_.laps.LapOf(lane, telemetry::WorkPart::kStore, lane.slice);
  LAMINA_ASSIGN_OR_RETURN(const uint64_t read, kv_.Attend(lane.index, lane.slice, qkv, out));
  telemetry::AddTo(context_.counters.kv_bytes_read, read);
  context_.laps.LapOf(lane, telemetry::WorkPart::kAttend, lane.slice);
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
