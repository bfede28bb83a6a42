// SPDX-License-Identifier: Apache-2.0
//
// PromptRate: how many tokens of prompts the compute nodes work off in a second, from steps that
// had some. What else is in such a step counts as theirs, as it is what the tokens are waited for
// with.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/clock.h"
#include "plan/step_plan.h"

namespace lamina::core {

class PromptRate {
 public:
  // Begins an epoch with so many lanes. What was measured before stays.
  void Reset(uint32_t lanes) { lanes_.assign(lanes, {}); }

  void Planned(const plan::StepPlan& plan, Nanos now);
  // The lane's oldest step is done.
  void Done(uint32_t lane, Nanos now);

  // 0: nothing has been measured.
  double TokensPerSecond() const { return seconds_ > 0 ? tokens_ / seconds_ : 0; }

 private:
  // Steps with fewer tokens say little of what many take.
  static constexpr uint32_t kTokensLeast = 16;
  // What a step counts after each later one.
  static constexpr double kKept = 0.9;

  struct Step {
    Nanos planned = 0;
    uint32_t tokens = 0;
  };
  struct LaneSteps {
    std::deque<Step> steps;  // Planned and not done.
    Nanos done = 0;          // When the last one was.
  };

  std::vector<LaneSteps> lanes_;
  double tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace lamina::core
