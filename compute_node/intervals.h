// SPDX-License-Identifier: Apache-2.0
//
// Intervals: what the time of a compute node's data thread goes into. Each stretch of it, from the
// end of the one before, is counted when it ends, and recorded if a timeline is wanted.
//
// Threading: the data thread. Cost: as WorkMeter::EndInterval().

#pragma once

#include <cstddef>
#include <cstdint>

#include "common/clock.h"
#include "compute_node/lane.h"
#include "telemetry/work_meter.h"

namespace lamina::compute_node {

class Intervals {
 public:
  explicit Intervals(telemetry::WorkMeter& meter) : meter_(meter) {}

  // What was before does not count.
  void Begin() { end_ = RealClock().Now(); }

  // The end of the last one.
  Nanos end() const { return end_; }

  // The time since the last interval went into `part`. Returns how much it was.
  Nanos EndInterval(telemetry::WorkKind part) {
    return EndInterval(telemetry::TraceEvent{.part = part});
  }
  Nanos EndInterval(telemetry::TraceEvent event);

  // Ends the interval with an event of the lane's `layer`.
  Nanos EndIntervalOf(const Lane& lane, telemetry::WorkKind part, uint32_t layer,
                      uint16_t peer = telemetry::TraceEvent::kNoPeer, size_t bytes = 0);

  // Ends the interval at `end`.
  void EndIntervalAt(const Lane& lane, telemetry::WorkKind part, uint32_t layer, Nanos end,
                     uint16_t peer = telemetry::TraceEvent::kNoPeer);

 private:
  telemetry::WorkMeter& meter_;
  Nanos end_ = 0;
};

}  // namespace lamina::compute_node
