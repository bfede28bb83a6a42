// SPDX-License-Identifier: Apache-2.0
#include "control/node_counters.h"

namespace lamina::control {

std::vector<WorkPart> PartsOf(bool is_memory) {
  std::vector<WorkPart> parts;
  for (int i = 0; i < kWorkParts; ++i) {
    const auto part = static_cast<WorkPart>(i);
    if ((part >= WorkPart::kStore) == is_memory || part == WorkPart::kWaitPlan) {
      parts.push_back(part);
    }
  }
  return parts;
}

void Count(const WorkMeter& meter, const Refusals& refusals, bool is_memory,
           NodeCounters& counters) {
  counters.busy_seconds = 0;
  counters.parts.clear();
  for (const WorkPart part : PartsOf(is_memory)) {
    const double seconds = meter.Seconds(part);
    counters.parts.emplace_back(std::string(NameOf(part)), seconds);
    counters.busy_seconds += IsWait(part) ? 0 : seconds;
  }
  counters.refused_messages = refusals.total();
  counters.refusals = refusals.ByReason();
  counters.links = meter.Links();
}

}  // namespace lamina::control
