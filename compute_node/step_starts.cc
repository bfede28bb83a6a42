// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_starts.h"

#include <algorithm>

namespace lamina::compute_node {
namespace {

bool IsIdle(const Lane& lane) { return lane.phase == LanePhase::kIdle; }

}  // namespace

bool StepRounds::MayBegin(absl::Span<const Lane> lanes, Nanos now) {
  if (!std::all_of(lanes.begin(), lanes.end(), IsIdle)) {
    return false;
  }
  if (ended_ < 0) {
    ended_ = now;
  }
  const bool complete = std::all_of(lanes.begin(), lanes.end(), [this](const Lane& lane) {
    return !last_[lane.index] || !lane.plans.empty();
  });
  return complete || now - ended_ >= kLinger;
}

void StepRounds::Began(absl::Span<const Lane> lanes) {
  if (std::all_of(lanes.begin(), lanes.end(), IsIdle)) {
    return;  // Plans without rows end at once, and make no round.
  }
  for (const Lane& lane : lanes) {
    last_[lane.index] = !IsIdle(lane);
  }
  ended_ = -1;
}

Nanos StepRounds::Nap(absl::Span<const Lane> lanes, Nanos now, Nanos most) const {
  const bool any =
      std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return !lane.plans.empty(); });
  return any && ended_ >= 0 ? std::clamp<Nanos>(ended_ + kLinger - now, 0, most) : most;
}

uint32_t StepStarts::Earliest(absl::Span<const Lane> lanes) {
  uint32_t earliest = UINT32_MAX;
  for (const Lane& lane : lanes) {
    earliest = IsIdle(lane) ? earliest : std::min(earliest, lane.slice);
  }
  return earliest == UINT32_MAX ? 0 : earliest;
}

std::unique_ptr<StepStarts> MakeStepStarts(bool weights_come, size_t lanes) {
  if (weights_come) {
    return std::make_unique<StepRounds>(lanes);
  }
  return std::make_unique<StepsAtOnce>();
}

}  // namespace lamina::compute_node
