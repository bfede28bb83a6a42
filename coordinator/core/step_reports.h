// SPDX-License-Identifier: Apache-2.0
//
// StepReports: puts the reports of several compute nodes about one step together. A step of a lane
// is done when every compute node that takes part in the lane has reported it; one of them brings
// the tokens.
//
// Threading: one thread.

#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"
#include "plan/step_plan.h"

namespace lamina::core {

// Whether all tokens that a compute node reports, and their ranks, are of a vocabulary of
// `vocabulary` tokens; 0: not known, and not checked.
// Errors: kInternal  names the first that is not. The whole report is of no use then.
absl::Status CheckTokens(const plan::StepResult& report, uint32_t vocabulary);

class StepReports {
 public:
  // A new epoch: nothing has been reported. The schedule says who takes part in which lane.
  void Reset(uint32_t nodes, uint32_t lanes, const plan::PipelineSchedule& schedule);

  // Takes the report of compute node `node`; returns the whole result with the last one.
  // Errors: kInternal  no such lane, one that the node has no part in, or not the node's next step
  // of it. Nothing changed.
  absl::StatusOr<std::optional<plan::StepResult>> Add(uint32_t node, plan::StepResult report);

 private:
  static constexpr uint64_t kNoPart = UINT64_MAX;
  struct LaneReports {
    std::vector<uint64_t> steps;        // Reported, by node; kNoPart if it takes none.
    std::deque<plan::StepResult> open;  // Steps that somebody has reported, oldest first.
  };
  std::vector<LaneReports> lanes_;
};

}  // namespace lamina::core
