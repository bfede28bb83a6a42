// SPDX-License-Identifier: Apache-2.0
//
// Policy local: attention of a slice is a call, not a journey.

#include "common/status_macros.h"
#include "compute_node/step_worker.h"

namespace lamina::compute_node {

absl::Status StepWorker::AttendHere(Lane& lane) {
  const uint32_t index = IndexOf(lane);
  const auto qkv = executor_.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  const auto out = executor_.AttentionRows(lane.slice, lane.positions.size(), lane.buffers);
  LAMINA_RETURN_IF_ERROR(local_->Store(index, lane.slice, qkv));
  LapOf(lane, control::WorkPart::kStore, lane.slice);
  LAMINA_ASSIGN_OR_RETURN(const uint64_t read, local_->Attend(index, lane.slice, qkv, out));
  control::AddTo(counters_.kv_bytes_read, read);
  LapOf(lane, control::WorkPart::kAttend, lane.slice);
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
