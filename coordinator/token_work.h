// SPDX-License-Identifier: Apache-2.0
//
// TokenWork: how much of the nodes' time prompts took, how much generated tokens, and how much the
// K and V that were kept for others, by the straight lines that the nodes have measured
// (cost/token_price.h has the rule). Steps that are planned before anything is measured are left
// out.
//
// Threading: one thread.

#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "cost/layer_seconds.h"
#include "cost/token_price.h"
#include "plan/step_plan.h"

namespace lamina::coordinator {

class TokenWork {
 public:
  explicit TokenWork(uint32_t layers) : layers_(layers) {}

  // Mean times of a layer: a slice of a decoding compute node over rows, an attention of one of
  // `memory_nodes` over its tokens of context. Without any, attention is a compute node's and part
  // of its slice.
  struct Times {
    cost::UnitTimes slice;
    cost::UnitTimes attention;
    uint32_t memory_nodes = 0;
  };
  void SetTimes(const Times& times) { times_ = times; }

  // A step is planned, on nodes for prefill only or on the others. In the order of planning.
  void Add(const plan::StepPlan& plan, bool on_prompt_nodes);

  // Prefixes that no running request uses have taken this share of all slots since the last call,
  // on compute nodes where these hold K and V: as much of what the nodes did meanwhile is theirs.
  void Hold(double kept_share, bool on_compute_nodes, Nanos now);

  Nanos held_until() const { return held_until_; }

  // Tokens of prompts that were computed, again after a preemption; and that were found computed
  // when their sequences joined for the first time.
  uint64_t input_tokens() const { return input_tokens_; }
  uint64_t cached_tokens() const { return cached_tokens_; }
  // Seconds of a node of either pool in the mean.
  const cost::PoolWork& work() const { return work_; }

 private:
  // What SequenceJoin says.
  struct Joined {
    uint32_t inputs = 0;
    uint32_t cached = 0;
  };
  // Tokens of a step, and tokens of context that its rows attend to.
  struct Load {
    uint64_t prompt_tokens = 0;
    uint64_t generated_tokens = 0;
    double prompt_context = 0;  // Without cached tokens,
    double cached_context = 0;  // and these.
    double generated_context = 0;
    // What nodes read for it: once for all rows of a prompt, and not at all where an answer's row
    // comes behind these.
    double prompt_read = 0;

    // Share of what prompts attend to that was found computed.
    double cached_share() const;
  };
  void Join(const plan::StepPlan& plan);
  Load LoadOf(const plan::StepPlan& plan) const;
  void AddLocal(const Load& load, const cost::StepShares& slice);

  uint32_t layers_;
  Times times_;
  uint64_t epoch_ = 0;
  absl::flat_hash_map<plan::SequenceId, Joined> joined_;  // Looked up, never walked through.
  uint64_t input_tokens_ = 0;
  uint64_t cached_tokens_ = 0;
  Nanos held_until_ = 0;
  cost::PoolWork held_;  // The work until then.
  cost::PoolWork work_;
};

}  // namespace lamina::coordinator
