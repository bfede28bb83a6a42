// SPDX-License-Identifier: Apache-2.0
//
// What plans spill, between the moment at which nodes hear of it and their reports. Disks fail at
// random.

#include <algorithm>
#include <vector>

#include "tests/sim/sim_world.h"

namespace lamina::sim {
namespace {

constexpr double kFails = 0.1;
constexpr Nanos kMoveMax = Micros(400);

}  // namespace

void SimWorld::StartSpills(const plan::StepPlan& plan) {
  for (const plan::SpillOut& spill : plan.spills_out) {
    ++(spill.sequence == 0 ? report_.reach.copied : report_.reach.spilled);
    StartSpill(spill.spill, sim_.bug == PlantedBug::kSpillNotAwaited);
  }
  for (const plan::SpillIn& spill : plan.spills_in) {
    const bool is_copy = nodes_->IsCopy(spill.spill);
    ++(is_copy ? report_.reach.copies_read : report_.reach.restored);
    StartSpill(spill.spill, sim_.bug == PlantedBug::kRestoreNotAwaited);
  }
}

// With `early` the nodes say that it is done when it begins.
void SimWorld::StartSpill(uint64_t spill, bool early) {
  const uint64_t epoch = epoch_;
  const uint32_t nodes = workload_.options.memory_nodes.front().spill.nodes;
  std::vector<bool> ok;
  for (uint32_t node = 0; node < nodes; ++node) {
    ok.push_back(!spill_random_.Chance(kFails));
  }
  const bool all = std::find(ok.begin(), ok.end(), false) == ok.end();
  report_.reach.spills_failed += !all;
  const auto delay = [this](Nanos most) {
    return 1 + static_cast<Nanos>(spill_random_.Below(static_cast<uint64_t>(most)));
  };
  const Nanos end = now_ + delay(kMoveMax);
  At(end, [this, spill, epoch, all] {
    if (epoch == epoch_) {
      nodes_->EndSpill(spill, all);
    }
  });
  for (const bool its : ok) {
    // Each node has done its part by itself; the last one when all is done.
    const Nanos done = (early ? now_ : end) + delay(workload_.faults.message_delay_max);
    At(done, [this, report = plan::SpillReport{.epoch = epoch, .spill = spill, .ok = its}] {
      scheduler_.OnSpilled(report);
    });
  }
}

}  // namespace lamina::sim
