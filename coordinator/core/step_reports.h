// SPDX-License-Identifier: Apache-2.0
//
// StepReports: puts the reports of several compute nodes about one step together. A step of a lane
// is done when every compute node has reported it; one of them brings the tokens.
//
// Threading: one thread.

#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/step_plan.h"

namespace lamina::core {

class StepReports {
 public:
  // A new epoch: nothing has been reported.
  void Reset(uint32_t nodes, uint32_t lanes);

  // Takes the report of compute node `node`; returns the whole result with the last one.
  // Errors: kInternal  no such lane, or not the node's next step of it. Nothing changed.
  absl::StatusOr<std::optional<StepResult>> Add(uint32_t node, StepResult report);

 private:
  struct Lane {
    std::vector<uint64_t> steps;  // Reported, by node.
    std::deque<StepResult> open;  // Steps that somebody has reported, oldest first.
  };
  std::vector<Lane> lanes_;
};

}  // namespace lamina::core
