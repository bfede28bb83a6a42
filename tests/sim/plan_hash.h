// SPDX-License-Identifier: Apache-2.0
//
// A hash of everything that the scheduler says: two schedulers with the same hash made the same
// plans, bit by bit, and told clients the same.

#pragma once

#include <cstdint>

#include "coordinator/core/scheduler.h"
#include "plan/step_plan.h"

namespace lamina::sim {

class PlanHash {
 public:
  void Add(const plan::StepPlan& plan);
  void Add(const core::Events& events);
  void Add(const core::SchedulerStats& stats);
  void Add(uint64_t value);

  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325ULL;
};

}  // namespace lamina::sim
