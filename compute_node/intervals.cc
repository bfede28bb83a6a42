// SPDX-License-Identifier: Apache-2.0
#include "compute_node/intervals.h"

#include <algorithm>

namespace lamina::compute_node {
namespace {

telemetry::TraceEvent EventOf(const Lane& lane, telemetry::WorkKind part, uint32_t layer,
                              uint16_t peer) {
  return {.part = part,
          .lane = static_cast<uint8_t>(lane.index),
          .peer = peer,
          .layer = static_cast<uint16_t>(layer),
          .rows = static_cast<uint16_t>(std::min<size_t>(lane.positions.size(), UINT16_MAX)),
          .step = static_cast<uint32_t>(lane.plan.step)};
}

}  // namespace

Nanos Intervals::EndInterval(telemetry::TraceEvent event) {
  event.start = end_;
  end_ = meter_.EndInterval(event);
  return end_ - event.start;
}

Nanos Intervals::EndIntervalOf(const Lane& lane, telemetry::WorkKind part, uint32_t layer,
                               uint16_t peer, size_t bytes) {
  telemetry::TraceEvent event = EventOf(lane, part, layer, peer);
  event.bytes = static_cast<uint32_t>(bytes);
  return EndInterval(event);
}

void Intervals::EndIntervalAt(const Lane& lane, telemetry::WorkKind part, uint32_t layer, Nanos end,
                              uint16_t peer) {
  telemetry::TraceEvent event = EventOf(lane, part, layer, peer);
  event.start = end_;
  event.end = end;
  end_ = meter_.EndIntervalAt(event);
}

}  // namespace lamina::compute_node
