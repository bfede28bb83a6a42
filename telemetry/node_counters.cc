// SPDX-License-Identifier: Apache-2.0
#include "telemetry/node_counters.h"

#include <utility>

namespace lamina::telemetry {

namespace {

bool IsPartOf(WorkKind part, bool is_memory) {
  return (part >= WorkKind::kStore) == is_memory || part == WorkKind::kWaitPlan;
}

}  // namespace

BusCount BusCountOf(std::string direction, const BusTotals& totals) {
  BusCount count{.direction = std::move(direction),
                 .bytes_per_second = totals.bytes_per_second,
                 .busy_seconds = totals.busy_seconds,
                 .bytes = {}};
  for (size_t kind = 0; kind < kBusKinds; ++kind) {
    count.bytes.emplace_back(NameOf(static_cast<BusKind>(kind)), totals.bytes[kind]);
  }
  return count;
}

void Count(const WorkMeter& meter, const Refusals& refusals, bool is_memory,
           NodeCounters& counters) {
  counters.busy_seconds = 0;
  counters.parts.clear();
  for (int i = 0; i < kWorkParts; ++i) {
    const auto part = static_cast<WorkKind>(i);
    const double seconds = meter.Seconds(part);
    if (seconds == 0 && !IsPartOf(part, is_memory)) {
      continue;  // Compute nodes have some of a memory node's parts under policy local.
    }
    counters.parts.emplace_back(std::string(NameOf(part)), seconds);
    counters.busy_seconds += IsWait(part) ? 0 : seconds;
  }
  counters.refused_messages = refusals.total();
  counters.refusals = refusals.ByReason();
  counters.links = meter.Links();
}

}  // namespace lamina::telemetry
