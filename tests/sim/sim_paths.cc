// SPDX-License-Identifier: Apache-2.0
//
// Worlds whose epochs prepare three paths of attention: who asks for which, and what must hold of
// the plans.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_world.h"

namespace lamina::sim {

// Forks ask for what their parents do. Some requests name no path, which is the remote one.
void ChoosePaths(Prng random, SimWorkload& workload) {
  workload.options.prefill_lanes = {};
  for (SimArrival& arrival : workload.arrivals) {
    for (core::SequenceRequest& request : arrival.requests) {
      if (request.fork_of != 0) {
        request.path = (&request - 1)->path;
        request.lossy = (&request - 1)->lossy;
      } else if (random.Chance(0.4)) {
        request.path = plan::AttentionPath::kFetch;
      } else if (random.Chance(0.3)) {
        request.path = plan::AttentionPath::kSparse;
        request.lossy = true;
      } else if (random.Chance(0.5)) {
        request.path = plan::AttentionPath::kRemote;
      }
    }
  }
}

void SimWorld::ObservePaths(const plan::StepPlan& plan) {
  for (const plan::SequenceJoin& join : plan.joins) {
    const core::SequenceRequest& request = requests_.at(scheduler_.AnswerOf(join.id));
    const plan::AttentionPath wanted = request.path.value_or(plan::AttentionPath::kRemote);
    if (join.path != wanted) {
      Fail(absl::StrCat("sequence ", join.id, " joins with path ", static_cast<uint32_t>(join.path),
                        ", and its request asked for ", static_cast<uint32_t>(wanted)));
    }
    report_.reach.lossy_joins += request.lossy ? 1 : 0;
    plan::AttentionPath& last = lane_paths_[plan.lane];
    report_.reach.path_changes += last != join.path;
    last = join.path;
  }
  const auto other = [&](const auto& entry) {
    return entry.first != plan.lane && entry.second != lane_paths_[plan.lane] &&
           links_[entry.first].busy;
  };
  report_.reach.paths_side_by_side += std::any_of(lane_paths_.begin(), lane_paths_.end(), other);
}

}  // namespace lamina::sim
