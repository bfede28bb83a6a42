// SPDX-License-Identifier: Apache-2.0
//
// CallScript: a scheduler under random calls, without nodes or time: submissions, cancellations,
// new epochs, measured times, and answers to planned steps in any order of lanes. It reaches what
// SimWorld does not (spans, bandwidths that change, one lane held), and says by a hash whether two
// schedulers behave alike.
//
// Determinism: same options, same calls, same hash, on every machine: times and bandwidths are
// drawn such that no arithmetic rounds.

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/philox.h"
#include "coordinator/core/scheduler.h"
#include "tests/sim/plan_hash.h"

namespace lamina::sim {

struct CallScriptOptions {
  uint64_t seed = 0;
  uint32_t calls = 250;
  core::SchedulerOptions base;  // Its strategies are used; the limits are drawn.
};

struct CallScriptReport {
  std::string failure;  // Empty: passed.
  uint64_t hash = 0;
  uint64_t plans = 0;
  uint64_t preemptions = 0;
  uint64_t spans = 0;  // Allocations on another node than that of the join.
  uint64_t lane_moves = 0;
  uint64_t forks = 0;
};

class CallScript {
 public:
  explicit CallScript(const CallScriptOptions& options);
  CallScriptReport Run();

 private:
  // A step that is planned, and the sequences that sample in it, with the positions of their
  // tokens.
  struct Planned {
    plan::StepPlan plan;
    std::vector<plan::SampledToken> tokens;
  };

  void Call();
  void Submit();
  void Plan();
  void StepDone();
  void FinishOne();
  void StartEpoch();
  void ChangeCosts();
  void TakePlan(plan::StepPlan plan);
  void Take(const core::Events& events);
  void Drain();
  void Check();
  void Fail(const std::string& what);
  uint32_t Between(uint32_t least, uint32_t most) {
    return least + static_cast<uint32_t>(random_.Below(most - least + 1));
  }

  CallScriptOptions script_;
  Prng random_;
  core::SchedulerOptions options_;
  std::unique_ptr<core::Scheduler> scheduler_;
  std::vector<std::deque<Planned>> in_flight_;            // By lane.
  std::map<plan::SequenceId, plan::SequenceJoin> table_;  // As nodes know it.
  std::set<plan::SequenceId> alive_;                      // Submitted and not ended.
  std::vector<core::SequenceRequest> submitted_;
  uint64_t epoch_ = 0;
  PlanHash hash_;
  CallScriptReport report_;
};

}  // namespace lamina::sim
