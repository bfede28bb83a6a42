// SPDX-License-Identifier: Apache-2.0
//
// BurstWait: before the first step of an idle cluster, a moment for the rest of a burst.
//
// Requests that are sent together come a fraction of a millisecond apart. Planned at once, the
// first of them gets a step of its own, and all others wait until it is done: for a whole pass over
// the weights that could have been theirs too. So the first step is planned when no further request
// has come for a while, or enough have come to fill all steps that are planned at once, or they
// have waited for a hundredth of the time that their prompts take.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>

#include "common/clock.h"
#include "coordinator/core/scheduler_options.h"

namespace lamina::core {

class BurstWait {
 public:
  // What the steps have room for that are planned at once while nothing runs.
  explicit BurstWait(const SchedulerOptions& options)
      : step_tokens_(uint64_t{options.step_tokens_max} * options.plan_ahead * options.lanes) {}

  // A request has come, with a prompt of so many tokens. Requires: `now` is not before the last
  // one's.
  void Came(uint32_t tokens, Nanos now);

  // When the first step may be planned, if nothing else comes: in the past for at once.
  // `tokens_per_second`: what prompts are computed at, 0 if that is not known yet; then nothing is
  // waited for.
  Nanos PlanAt(double tokens_per_second) const;

  // A step has been planned: what comes now is of another burst.
  void Planned() { tokens_ = 0; }

 private:
  // Longer silences between two requests of one burst are rare over loopback.
  static constexpr Nanos kSilence = Millis(2);
  // A first step may be held up for this share of the time that its prompts take.
  static constexpr double kShare = 0.01;

  const uint64_t step_tokens_;
  uint64_t tokens_ = 0;  // All prompts since the last step have so many; 0: none has come.
  Nanos first_ = 0;
  Nanos last_ = 0;
};

}  // namespace lamina::core
