// SPDX-License-Identifier: Apache-2.0
//
// Worlds of one pool: replicas that keep K and V of their own lanes, come and go, and hold them
// alone or in stages and shards; and what must hold of the plans.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_world.h"

namespace lamina::sim {

void KeepKvOnReplicas(uint64_t seed, SimWorkload& workload) {
  core::SchedulerOptions& options = workload.options;
  options.prefill_lanes = {};
  options.span_tokens = 0;
  const auto replicas = static_cast<uint32_t>(options.memory_nodes.size());
  // Others may be added later, for which there are lanes if those before have several.
  options.lanes = replicas * (1 + static_cast<uint32_t>(seed % 3));
}

void SimWorld::BindLanes() {
  const auto replicas = static_cast<uint32_t>(memory_nodes_.size());
  homes_ = core::LaneHomes::Bound(replicas);
  scheduler_.HoldLanes(workload_.options.lanes / replicas * replicas, "bound");
}

// Each replica is one to three nodes.
void SimWorld::ChangePool() {
  stages_.clear();
  for (size_t i = 0; i < memory_nodes_.size(); ++i) {
    AddReplica(1 + static_cast<uint32_t>(stages_random_.Below(3)), stages_random_.Chance(0.5));
  }
  replicas_ = static_cast<uint32_t>(memory_nodes_.size());
  HaveReplicas(PipelineMode::kApart);
}

// What a lane has is on its replica, and nowhere else.
void SimWorld::ObserveHomes(const plan::StepPlan& plan) {
  const uint32_t home = plan.lane % static_cast<uint32_t>(memory_nodes_.size());
  const auto expect = [&](bool right, plan::SequenceId id, absl::string_view what) {
    if (!right) {
      Fail(absl::StrCat("sequence ", id, " of lane ", plan.lane, what));
    }
  };
  for (const plan::SequenceJoin& join : plan.joins) {
    const auto last = home_of_.find(join.id);
    report_.reach.homes_changed += last != home_of_.end() && last->second != home;
    home_of_[join.id] = home;
    expect(join.memory_node == home, join.id, " joins another replica than that of the lane");
  }
  for (const plan::SlotAllocation& allocation : plan.allocations) {
    expect(allocation.memory_node == home, allocation.sequence, " gets slots of another replica");
  }
  const auto is_home = [&](plan::SequenceId id) {
    const auto joined = home_of_.find(id);
    return joined != home_of_.end() && joined->second == home;
  };
  for (const plan::DecodeRow& row : plan.rows) {
    expect(is_home(row.sequence), row.sequence, " has a row where its K and V are not");
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    expect(is_home(chunk.sequence), chunk.sequence, " has a chunk where its K and V are not");
  }
  const auto other = [&](uint32_t lane) {
    return lane % memory_nodes_.size() != home && links_[lane].busy;
  };
  for (uint32_t lane = 0; lane < links_.size(); ++lane) {
    report_.reach.replicas_side_by_side += other(lane) ? 1 : 0;
  }
}

}  // namespace lamina::sim
