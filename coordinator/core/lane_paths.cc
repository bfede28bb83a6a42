// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/lane_paths.h"

#include <algorithm>

namespace lamina::core {

bool LanePaths::HasLane(plan::AttentionPath path) const {
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_.PathOf(lane) == path) {
      return true;
    }
  }
  return false;
}

std::optional<plan::AttentionPath> LanePaths::Awaited() const {
  const SequenceQueue& waiting = life_.waiting();
  const SequenceQueue& draining = life_.draining();
  Sequence* first = waiting.empty() ? nullptr : *waiting.begin();
  // One that drains waits again in a moment, in its old place.
  if (!draining.empty() && (first == nullptr || life_.Before(**draining.begin(), *first))) {
    first = *draining.begin();
  }
  if (first == nullptr) {
    return std::nullopt;
  }
  const plan::AttentionPath path = life_.PathOf(first->request);
  return HasLane(path) ? std::nullopt : std::optional(path);
}

bool LanePaths::AnyAwaits(absl::Span<const plan::AttentionPath> between_steps) const {
  return Awaited().has_value() ||
         std::any_of(between_steps.begin(), between_steps.end(),
                     [this](plan::AttentionPath path) { return !HasLane(path); });
}

void LanePaths::Restrict(plan::AttentionPath path, std::vector<LaneLoad>& loads) const {
  for (uint32_t lane = 0; lane < loads.size(); ++lane) {
    loads[lane].has_room &= Takes(lane, path);
  }
}

std::vector<plan::AttentionPath> LanePaths::InUse() const {
  std::vector<plan::AttentionPath> paths;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::optional<plan::AttentionPath> path = lanes_.PathOf(lane);
    if (path.has_value() && std::find(paths.begin(), paths.end(), *path) == paths.end()) {
      paths.push_back(*path);
    }
  }
  return paths;
}

std::optional<uint32_t> LanePaths::LaneToEmpty() const {
  if (!Awaited().has_value()) {
    return std::nullopt;
  }
  std::optional<uint32_t> least;
  const std::vector<LaneLoad>& loads = lanes_.loads();
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::optional<plan::AttentionPath> path = lanes_.PathOf(lane);
    if (!path.has_value()) {
      return std::nullopt;  // There is an empty one.
    }
    bool has_other = false;
    for (uint32_t other = 0; other < lanes_.size(); ++other) {
      has_other |= other != lane && lanes_.PathOf(other) == path;
    }
    // Beams stay in their lane.
    has_other = has_other && std::none_of(lanes_[lane].running.begin(), lanes_[lane].running.end(),
                                          [](const Sequence* s) { return s->request.is_beam; });
    if (has_other && (!least || WorkOf(loads[lane]) < WorkOf(loads[*least]))) {
      least = lane;
    }
  }
  return least;
}

}  // namespace lamina::core
