// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/pipeline_schedule.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace lamina::core {

uint32_t PipelineSchedule::ReplicaOf(uint32_t lane, uint64_t step, uint32_t slice,
                                     bool pinned) const {
  if (IsPrefillLane(lane)) {
    return PrefillNodeOf(lane);
  }
  if (mode_ != PipelineMode::kRotational || pinned) {
    return lane % replicas_;
  }
  return static_cast<uint32_t>((lane + (step - 1) * layers_ + slice) % replicas_);
}

void LaneTurns::Begin(uint32_t lane) {
  if (lanes_[lane].taking_part) {
    return;
  }
  uint64_t least = UINT64_MAX;
  for (const Lane& other : lanes_) {
    if (other.taking_part) {
      least = std::min(least, other.units);
    }
  }
  Lane& own = lanes_[lane];
  own.taking_part = true;
  own.units = least == UINT64_MAX ? own.units : std::max(own.units, least);
}

void LaneTurns::SetReady(uint32_t lane) {
  LAMINA_CHECK(lanes_[lane].taking_part);
  lanes_[lane].ready_since = ++now_;
}

std::optional<uint32_t> LaneTurns::Next() {
  std::optional<uint32_t> next;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (lane.ready_since != 0 &&
        (!next || std::pair(lane.units, lane.ready_since) <
                      std::pair(lanes_[*next].units, lanes_[*next].ready_since))) {
      next = i;
    }
  }
  if (next) {
    lanes_[*next].ready_since = 0;
    ++lanes_[*next].units;
  }
  return next;
}

void LaneTurns::End(uint32_t lane) {
  lanes_[lane].taking_part = false;
  lanes_[lane].ready_since = 0;
}

}  // namespace lamina::core
