// SPDX-License-Identifier: Apache-2.0
//
// RestoreTimes: how long K and V take from the plan that has them read out of a spill tier to the
// report of the last node, and from there to the plan of the first step that works on the sequence.
//
// Threading: one thread. Memory: bounded by the reads under way.

#pragma once

#include <cstdint>
#include <map>

#include "common/clock.h"
#include "coordinator/request_metrics.h"
#include "plan/step_plan.h"

namespace lamina::coordinator {

class RestoreTimes {
 public:
  // `metrics` must outlive this.
  explicit RestoreTimes(RequestMetrics& metrics) : metrics_(metrics) {}

  // Another epoch begins: nothing is read any more.
  void Reset() { restores_.clear(); }
  void Planned(const plan::StepPlan& plan, Nanos now);
  void Reported(const plan::SpillReport& report, Nanos now);

 private:
  struct Restore {
    plan::SequenceId sequence = 0;
    Nanos planned = 0;
    Nanos reported = 0;  // By the last node so far. 0: by none.
  };

  void Works(plan::SequenceId sequence, Nanos now);

  RequestMetrics& metrics_;
  std::map<uint64_t, Restore> restores_;  // By the number of the spill.
};

}  // namespace lamina::coordinator
