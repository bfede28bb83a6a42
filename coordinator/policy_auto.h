// SPDX-License-Identifier: Apache-2.0
//
// PolicyAuto: policy auto: whether an epoch has KV on the memory nodes or on the compute node, and
// when one of the other kind is to begin. Sees the load of late, and chooses by what the nodes have
// measured.
//
// Threading: the engine's thread; time is passed in.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/clock.h"
#include "coordinator/core/policy_choice.h"
#include "coordinator/engine_options.h"
#include "cost/policy_step.h"
#include "plan/policy_times.h"

namespace lamina::coordinator {

// "local" or "attend_remote".
const char* PolicyNameOf(const core::PolicyChoice& choice);

// What the nodes that are there have measured.
struct PolicyMeasures {
  plan::PolicyTimes times;                  // Times of the compute node, or the slowest of several.
  uint32_t replicas = 1;                    // How many there are.
  std::map<std::string, double> bandwidth;  // Bytes a second of each memory node that is there.
  std::map<std::string, double> attention;  // Bytes of K and V a second, of those that say.
};

// What an epoch serves now, and what has come of it since the coordinator started.
struct ServedLoad {
  bool local = false;
  uint32_t rows = 0;
  uint64_t context_tokens = 0;
  uint64_t tokens = 0;   // Generated.
  uint64_t prompts = 0;  // Steps planned with rows of prompts.
};

class PolicyAuto {
 public:
  // Requires: options.policy_auto. The options must outlive this.
  explicit PolicyAuto(const EngineOptions& options);

  // Requests run or wait. True when the load is to be told, every few milliseconds: SawLoad().
  bool SawWork(Nanos now);
  // Decode rows and all their tokens of context, as they are now.
  void SawLoad(Nanos now, uint32_t rows, uint64_t context_tokens);
  // What came of that load. Only time in which no rows of prompts ran counts as steps.
  void SawSteps(Nanos now, const ServedLoad& served);
  // Nothing runs. True when that has been so for long enough to begin another epoch; then anew.
  bool SawNothing(Nanos now);

  // Chooses by the load of late, or by the cluster file's while too little has been seen.
  const core::PolicyChoice& Choose(core::CurrentPolicy current, const PolicyMeasures& measures);
  // The last one; nothing before the first.
  const std::optional<core::PolicyChoice>& choice() const { return choice_; }
  // What the last choice made of the policy; kNone before the first.
  core::CurrentPolicy current() const;

 private:
  double AttentionOfPools(const PolicyMeasures& measures) const;
  core::PolicyCorrections Corrections(const PolicyMeasures& measures,
                                      const cost::PolicyPools& pools) const;
  cost::PolicyModel ModelAt(const PolicyMeasures& measures, double context) const;

  const EngineOptions& options_;
  std::optional<core::PolicyChoice> choice_;
  core::PolicyLoadMeter meter_;
  core::PolicyStepMeter local_steps_;  // Steps of each policy, while it served.
  core::PolicyStepMeter pools_steps_;
  std::optional<ServedLoad> served_;  // As last seen, at
  Nanos served_seen_ = 0;
  Nanos settled_ = 0;                // From when on no step with rows of prompts runs.
  Nanos load_seen_ = 0;              // When the load was last seen,
  std::optional<Nanos> idle_since_;  // and since when nothing runs.
};

}  // namespace lamina::coordinator
