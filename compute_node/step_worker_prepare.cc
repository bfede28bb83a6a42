// SPDX-License-Identifier: Apache-2.0
//
// What an epoch's data thread needs before it runs: buffers, captured slices, sources of puts.

#include <algorithm>

#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "compute_node/step_worker.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {

absl::Status StepWorker::Prepare() {
  LAMINA_RETURN_IF_ERROR(tail_.Prepare(options_.vocabulary));
  for (Lane& lane : lanes_) {
    if (context_.Runs(lane)) {
      LAMINA_ASSIGN_OR_RETURN(lane.buffers,
                              executor_.MakeBuffers(plan::StepRowsMax(options_.config)));
    }
  }
  LAMINA_RETURN_IF_ERROR(paths_.Prepare());
  for (Lane& lane : lanes_) {
    if (context_.Runs(lane)) {
      paths_.PrepareLane(lane);
    }
  }
  CaptureSlices();
  return absl::OkStatus();
}

uint64_t StepWorker::buffer_bytes() const {
  uint64_t bytes = tail_.buffer_bytes() + paths_.buffer_bytes() + shards_.bytes();
  for (const Lane& lane : lanes_) {
    bytes += lane.buffers.bytes();
  }
  return bytes;
}

// Captures slices of every lane that runs here and has decode rows. This takes memory last: a node
// can do without it.
void StepWorker::CaptureSlices() {
  const Nanos start = RealClock().Now();
  size_t captured = 0;
  for (Lane& lane : lanes_) {
    if (!context_.Runs(lane) || context_.schedule.IsPrefillLane(lane.index)) {
      continue;
    }
    const size_t rows_max =
        std::min<size_t>(options_.config.rows_max, plan::StepRowsMax(options_.config));
    const absl::Status status = executor_.Capture(rows_max, lane.buffers);
    if (!status.ok()) {
      LogWarning("epoch ", options_.config.epoch, " lane ", lane.index,
                 " slices run op by op, since they cannot be captured: ", status.message());
    }
    captured += lane.buffers.captured().count();
  }
  if (captured > 0) {
    LogInfo("epoch ", options_.config.epoch, " captured ", captured, " runs of slices on ",
            executor_.device().name(), " in ", ToSeconds(RealClock().Now() - start), " s");
  }
}

absl::Status StepWorker::RegisterSources() {
  for (const Lane& lane : lanes_) {
    for (const absl::Span<std::byte> bytes : lane.buffers.Allocations()) {
      LAMINA_RETURN_IF_ERROR(transport_.RegisterSource(bytes, transport::MemoryKind::kHost));
    }
  }
  if (windows_.on_device()) {
    LAMINA_RETURN_IF_ERROR(
        transport_.RegisterSource(windows_.mirror(), transport::MemoryKind::kHost));
  }
  LAMINA_RETURN_IF_ERROR(replicas_.RegisterSources());
  return shards_.RegisterSources();
}

// A transport that carries messages moves them there too.
std::function<void()> StepWorker::BetweenOps() {
  if (transport_.capabilities().one_sided) {
    return [this] { counters_.beat.Raise(); };
  }
  return [this] {
    counters_.beat.Raise();
    transport_.Progress();
  };
}

}  // namespace lamina::compute_node
