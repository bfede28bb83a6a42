// SPDX-License-Identifier: Apache-2.0
//
// PolicyAuto: policy auto: which of the exact policies an epoch has, and when one of another policy
// is to begin. Sees the load of late, and chooses by what the nodes have measured.
//
// Threading: the engine's thread; time is passed in.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "coordinator/core/policy_choice.h"
#include "coordinator/engine_options.h"
#include "coordinator/fetch_options.h"
#include "coordinator/policy_measures.h"
#include "cost/policy_step.h"
#include "cost/step_cost.h"

namespace lamina::coordinator {

// What an epoch serves now, and what has come of it since the coordinator started.
struct ServedLoad {
  cost::KvPolicy policy = cost::KvPolicy::kAttendRemote;
  uint32_t activation_share = 0;  // With fetch_hybrid, in plan::SlotKinds::kUnit-ths.
  uint32_t rows = 0;
  uint64_t context_tokens = 0;
  uint64_t tokens = 0;         // Generated since the start.
  uint64_t prompts = 0;        // Steps planned with rows of prompts.
  uint64_t prompt_tokens = 0;  // Computed since the start, or planned to be.
};

// What an epoch is to have.
struct EpochPolicy {
  cost::KvPolicy policy = cost::KvPolicy::kAttendRemote;
  FetchOptions fetch;
  // With fetch_hybrid, in plan::SlotKinds::kUnit-ths; and for people.
  std::optional<uint32_t> activation_share;
  std::string words;
};

class PolicyAuto {
 public:
  // Requires: options.policy_auto. The options must outlive this.
  explicit PolicyAuto(const EngineOptions& options);

  // Requests run or wait. True when the load is to be told, every few milliseconds: SawLoad().
  bool SawWork(Nanos now);
  // Decode rows and all their tokens of context, as they are now.
  void SawLoad(Nanos now, uint32_t rows, uint64_t context_tokens);
  // What came of that load. Only time in which no rows of prompts ran counts as steps, from one
  // token to the next, and not while something stood still.
  void SawSteps(Nanos now, const ServedLoad& served);
  // Nothing runs. True when that has been so for long enough to begin another epoch; then anew. At
  // once where links have been measured that the last choice had to assume.
  bool SawNothing(Nanos now, const PolicyMeasures& measures);

  // Chooses by the load of late, or by the cluster file's while too little has been seen.
  const core::PolicyChoice& Choose(std::optional<cost::KvPolicy> current,
                                   const PolicyMeasures& measures);
  // The last one; nothing before the first.
  const std::optional<core::PolicyChoice>& choice() const { return choice_; }
  // What the last choice made of the policy; nothing before the first.
  std::optional<cost::KvPolicy> current() const;
  // Whether the last choice is worth another epoch than one of that policy, and with fetch_hybrid
  // of that share. Requires: a choice.
  bool WorthAnEpoch(cost::KvPolicy served, uint32_t activation_share) const;
  // The last choice could not be prepared, as one of its nodes said. It is left out until
  // ForgetFailures(). False, and nothing changes, where no other policy can be had.
  bool PassOver(const std::string& why);
  // Nodes have come, or what was set aside is tried again.
  void ForgetFailures() { failed_.clear(); }
  // What an epoch of that choice has. Requires: a choice.
  EpochPolicy Epoch() const;

 private:
  void ForgetOtherMembers(const PolicyMeasures& measures);
  void CountTokens(Nanos now, const ServedLoad& served);
  double SecondsMax(cost::KvPolicy policy) const;
  void SettleShare(const core::PolicyChoice& predicted);
  double AttentionOfPools(const PolicyMeasures& measures) const;
  double LinkOf(const PolicyMeasures& measures) const;
  cost::PolicyPools PoolsOf(const PolicyMeasures& measures) const;
  cost::PartLink PartsOf(const PolicyMeasures& measures) const;
  double TokensOnMemoryNodes(const FetchOptions& fetch, uint64_t memory) const;
  std::vector<core::PolicyCandidate> Candidates(const PolicyMeasures& measures) const;
  core::PolicyCorrections Corrections(const PolicyMeasures& measures,
                                      const cost::PolicyPools& pools) const;
  core::PolicyInputs InputsAt(const PolicyMeasures& measures, const cost::PolicyPools& pools,
                              double context) const;

  const EngineOptions& options_;
  std::optional<core::PolicyChoice> choice_;
  std::map<cost::KvPolicy, std::string> failed_;  // Why no epoch of it could be prepared.
  core::PolicyLoadMeter meter_;
  std::map<cost::KvPolicy, core::PolicyStepMeter> steps_;  // What each took, while it served,
  std::vector<std::string> members_;                       // with these nodes.
  std::optional<uint32_t> share_;  // That epochs of fetch_hybrid have; none before it was weighed.
  // As they were measured last: bytes a second over all links to memory nodes; the slowest link
  // within a replica.
  double link_ = 0;
  cost::PartLink parts_;
  uint64_t tokens_counted_ = 0;         // Generated, as the meter knows,
  uint64_t prompt_tokens_counted_ = 0;  // and of prompts,
  Nanos tokens_counted_at_ = 0;         // by then; or nothing ran then.
  std::optional<ServedLoad> served_;    // As last seen, at
  Nanos served_seen_ = 0;
  Nanos settled_ = 0;                // From when on no step with rows of prompts runs.
  Nanos load_seen_ = 0;              // When the load was last seen,
  std::optional<Nanos> idle_since_;  // and since when nothing runs.
};

}  // namespace lamina::coordinator
