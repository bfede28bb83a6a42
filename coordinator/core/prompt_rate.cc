// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/prompt_rate.h"

#include <algorithm>

namespace lamina::core {

void PromptRate::Planned(const plan::StepPlan& plan, Nanos now) {
  uint32_t tokens = 0;
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    tokens += chunk.tokens;
  }
  lanes_[plan.lane].steps.push_back({.planned = now, .tokens = tokens});
}

void PromptRate::Done(uint32_t lane, Nanos now) {
  LaneSteps& of = lanes_[lane];
  if (of.steps.empty()) {
    return;
  }
  const Step step = of.steps.front();
  of.steps.pop_front();
  // It has run since the step before it was done, if it had been planned by then.
  const double seconds = ToSeconds(now - std::max(step.planned, of.done));
  of.done = now;
  if (step.tokens >= kTokensLeast && seconds > 0) {
    tokens_ = kKept * tokens_ + step.tokens;
    seconds_ = kKept * seconds_ + seconds;
  }
}

}  // namespace lamina::core
