// SPDX-License-Identifier: Apache-2.0
//
// PlannedSteps: the steps of each lane that are planned and not yet done, and whether a result is
// what was planned.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/sequence_life.h"
#include "coordinator/core/step_borders.h"
#include "plan/step_plan.h"

namespace lamina::core {

struct PlannedToken {
  plan::SequenceId sequence = 0;
  uint32_t position = 0;  // Position of the token that is sampled.
  uint32_t seat = 0;      // Seat of the sequence.
};
// K and V of tokens [first, first + tokens) of its prompt will be stored.
struct PlannedPrompt {
  plan::SequenceId sequence = 0;
  uint32_t seat = 0;
  uint32_t first = 0;
  uint32_t tokens = 0;
};
struct PlannedScore {
  plan::SequenceId sequence = 0;
  bool last = false;
};

struct PlannedStep {
  uint64_t step = 0;
  StepBorder border;
  // One of a sequence at most; in the order of the plan's rows, and then of its chunks, as nodes
  // report them: in any other order they are searched.
  std::vector<PlannedToken> tokens;
  std::vector<PlannedScore> scores;
  std::vector<PlannedPrompt> prompts;  // Where somebody remembers what is stored.
};

class PlannedSteps {
 public:
  // Steps count from 1 again.
  void Reset(uint32_t lanes) { lanes_.assign(lanes, {}); }

  // The last step of the lane that is planned, and the last one that is done; 0: none.
  uint64_t planned(uint32_t lane) const { return lanes_[lane].planned; }
  uint64_t done(uint32_t lane) const { return lanes_[lane].done; }
  size_t InFlight(uint32_t lane) const { return lanes_[lane].in_flight.size(); }
  bool empty() const;  // All are done.

  // Requires: it is the lane's next step.
  void Add(uint32_t lane, PlannedStep step);

  // Errors: kInternal  not the oldest step of its lane that is not done, a row that was not
  // planned,
  //                    or one that is missing.
  absl::Status Check(const plan::StepResult& result, const SequenceLife& life) const;

  // The lane's oldest step is done.
  PlannedStep TakeOldest(uint32_t lane);

  // Errors: kInternal names the first broken invariant.
  absl::Status Audit(uint32_t plan_ahead) const;

 private:
  struct LaneSteps {
    uint64_t planned = 0;
    uint64_t done = 0;
    std::deque<PlannedStep> in_flight;
  };
  std::vector<LaneSteps> lanes_;
};

}  // namespace lamina::core
