// SPDX-License-Identifier: Apache-2.0
//
// What an epoch's data thread needs before it runs: buffers, recorded slices, sources of puts.

#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "compute_node/step_worker.h"
#include "transport/put_all.h"

namespace lamina::compute_node {

absl::Status StepWorker::Prepare() {
  LAMINA_ASSIGN_OR_RETURN(tail_buffers_, executor_.MakeTailBuffers());
  LAMINA_ASSIGN_OR_RETURN(
      sampler_,
      executor_.device().MakeSampler({.vocabulary = options_.vocabulary,
                                      .rows_max = SliceExecutor::kTailRows,
                                      .sequence_tokens_max = options_.config.sequence_tokens_max}));
  device_samples_.reserve(SliceExecutor::kTailRows);
  host_rows_.reserve(SliceExecutor::kTailRows);
  for (Lane& lane : lanes_) {
    if (Runs(IndexOf(lane))) {
      LAMINA_ASSIGN_OR_RETURN(
          lane.buffers,
          executor_.MakeBuffers(options_.config.rows_max + options_.config.chunk_tokens_max));
    }
  }
  MakeExchange();
  RecordSlices();
  return absl::OkStatus();
}

// Of every lane that runs here and has decode rows. Last of what takes memory: it is what a node
// can do without.
void StepWorker::RecordSlices() {
  const Nanos start = RealClock().Now();
  size_t recorded = 0;
  for (Lane& lane : lanes_) {
    if (!Runs(IndexOf(lane)) || schedule_.IsPrefillLane(IndexOf(lane))) {
      continue;
    }
    const absl::Status status = executor_.Record(options_.config.rows_max, lane.buffers);
    if (!status.ok()) {
      LogWarning("epoch ", options_.config.epoch, " lane ", IndexOf(lane),
                 " slices run op by op, since they cannot be recorded: ", status.message());
    }
    recorded += lane.buffers.recordings();
  }
  if (recorded > 0) {
    LogInfo("epoch ", options_.config.epoch, " recorded ", recorded, " runs of slices on ",
            executor_.device().name(), " in ", ToSeconds(RealClock().Now() - start), " s");
  }
}

absl::Status StepWorker::RegisterSources() {
  for (Lane& lane : lanes_) {
    if (!Runs(IndexOf(lane))) {
      continue;
    }
    for (const absl::Span<std::byte> bytes : lane.buffers.Allocations()) {
      LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(bytes, transport::MemoryKind::kHost));
    }
    LAMINA_RETURN_IF_ERROR(
        transport_.RegisterSource(transport::AsBytes(lane.headers.data(), lane.headers.size()),
                                  transport::MemoryKind::kHost));
    LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(
        transport::AsBytes(lane.kv_staging.data(), lane.kv_staging.size()),
        transport::MemoryKind::kHost));
    LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(
        transport::AsBytes(lane.row_staging.data(), lane.row_staging.size()),
        transport::MemoryKind::kHost));
    LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(transport::AsBytes(&lane.context_header, 1),
                                                     transport::MemoryKind::kHost));
    for (const std::vector<std::byte>& part : lane.parts) {
      LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(part, transport::MemoryKind::kHost));
    }
    for (const std::vector<std::byte>& message : lane.token_messages) {
      LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(message, transport::MemoryKind::kHost));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
