// SPDX-License-Identifier: Apache-2.0
#include "memory_node/unit_meter.h"

#include <algorithm>

namespace lamina::memory_node {

UnitMeter::UnitMeter(const NodeEpoch& epoch) : epoch_(epoch) {
  for (const std::string& name : epoch.config.compute_nodes) {
    links_.push_back(epoch.counters.meter.Link(name));
  }
}

Nanos UnitMeter::EndInterval(telemetry::WorkKind part, const Lane& lane, uint64_t value,
                             uint32_t compute_node, size_t bytes) {
  const Nanos start = end_;
  end_ = epoch_.counters.meter.EndInterval(
      {.start = start,
       .part = part,
       .lane = static_cast<uint8_t>(lane.index),
       .peer = static_cast<uint16_t>(compute_node),
       .layer = static_cast<uint16_t>(epoch_.layout.LayerOf(value)),
       .rows = static_cast<uint16_t>(lane.rows.size()),
       .step = static_cast<uint32_t>(epoch_.layout.StepOf(value)),
       .bytes = static_cast<uint32_t>(std::min<size_t>(bytes, UINT32_MAX))});
  return end_ - start;
}

void UnitMeter::Lap(telemetry::WorkKind part) {
  end_ = epoch_.counters.meter.EndInterval({.start = end_, .part = part});
}

void UnitMeter::EndIntervalAt(const telemetry::TraceEvent& event) {
  end_ = epoch_.counters.meter.EndIntervalAt(event);
}

void UnitMeter::NoteUnit(const Lane& lane, uint32_t layer, Nanos nanos) {
  if (lane.rows.empty() || lane.chunk_tokens > 0 || layer == 0 ||
      layer + 1 == epoch_.layout.layer_count()) {
    return;
  }
  unit_times_.Add(static_cast<double>(lane.context_tokens()), ToSeconds(nanos));
  epoch_.counters.unit_line.Set(unit_times_.Line(/*proportional=*/true));
}

}  // namespace lamina::memory_node
