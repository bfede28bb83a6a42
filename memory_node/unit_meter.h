// SPDX-License-Identifier: Apache-2.0
//
// UnitMeter: where a memory node's data thread spends its time, and how long units take. Sources
// share it, so that every moment is counted once.
//
// Threading: the data thread. Allocation: none after construction.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "common/line_fit.h"
#include "memory_node/node_epoch.h"
#include "telemetry/work_meter.h"

namespace lamina::memory_node {

class UnitMeter {
 public:
  explicit UnitMeter(const NodeEpoch& epoch);

  // Time is counted from now on.
  void Start() { end_ = RealClock().Now(); }
  // The end of the last interval.
  Nanos end() const { return end_; }

  // The time since the last interval went into `part` of the unit of `value`, for a compute node.
  // Returns how much it was.
  Nanos EndInterval(telemetry::WorkKind part, const Lane& lane, uint64_t value,
                    uint32_t compute_node, size_t bytes = 0);
  // It went into waiting for queries, of nobody.
  void LapIdle() { Lap(telemetry::WorkKind::kWaitQuery); }
  // It went into `part`, for nobody.
  void Lap(telemetry::WorkKind part);
  // What ended at `event.end`, told of later.
  void EndIntervalAt(const telemetry::TraceEvent& event);

  telemetry::LinkCounters& link(uint32_t compute_node) { return *links_[compute_node]; }

  // Attention over the lane's rows in a layer took so long. Units with prompt chunks are left out
  // of the fit, and a step's first and last: the first may have waited for the plan, the last
  // applies the next one.
  void NoteUnit(const Lane& lane, uint32_t layer, Nanos nanos);

 private:
  const NodeEpoch& epoch_;
  std::vector<telemetry::LinkCounters*> links_;  // [compute nodes]
  LineFit unit_times_;
  Nanos end_ = 0;
};

}  // namespace lamina::memory_node
