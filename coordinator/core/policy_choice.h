// SPDX-License-Identifier: Apache-2.0
//
// What `policy: auto` picks, and why: the exact policy whose decode step takes least time for a
// load, together with the tokens of prompts that come with it, by what the nodes have measured.
// Pure functions.
//
// Determinism: same arguments, same answer.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "cost/policy_step.h"
#include "cost/step_cost.h"

namespace lamina::core {

// A policy that an epoch may have.
struct PolicyCandidate {
  cost::KvPolicy policy = cost::KvPolicy::kLocal;
  std::string why_not = {};  // Why the cluster cannot have it, or is not to; empty: it can.
  double tokens_max = 0;     // Tokens whose K and V fit; 0: any number.
};

// What is expected of it.
struct PolicyFigure {
  PolicyCandidate candidate;
  cost::PolicyStep step;  // With as many of the load's rows as fit.
  double rows = 0;        // How many these are,
  double waiting = 0;     // and how many wait for their turn meanwhile.
  // Seconds in which each row of the load gets a token: the step's, as far as steps were corrected,
  // times the turns that rows take where they do not all fit. 0: the policy cannot be had.
  double seconds = 0;
  double prompts = 0;  // Seconds of the tokens of prompts that are computed for these tokens.
  // Seconds of both at each end of what was measured, if it has ends.
  std::vector<double> ends = {};
  // How many times as long as with the fastest policy both take: at the end where that is most, or
  // without ends altogether. 1: nothing is faster at either end. 0: it cannot be had.
  double worst = 0;
};

struct PolicyChoice {
  cost::KvPolicy policy = cost::KvPolicy::kLocal;
  // "16 rows at 1024 tokens, 1.0 of a prompt to each: a step takes 66.1 ms (dense 66.1, attention
  // 45.0, 2 lanes) and its prompts 14.2, with local 78.2 ms (dense 50.1, attention 28.1) and
  // its prompts 9.6": what was chosen, and the best of the others.
  std::string why;
  std::vector<PolicyFigure> figures;  // In the order of the candidates.

  bool local() const { return policy == cost::KvPolicy::kLocal; }
  // 0: it cannot be had.
  double SecondsOf(cost::KvPolicy wanted) const;
};

// Steps of the other policy, with their prompts, must be shorter than those of the current one by
// this factor to make it worth an epoch.
inline constexpr double kWorthAnEpoch = 0.9;

// The factor where the current policy's steps are measured while it serves, and the other's only
// predicted: so little is worth a try, since then both are measured.
inline constexpr double kWorthATry = 0.97;

// Steps as they were measured while a policy served, as a multiple of what is predicted for the
// same load. Beyond a third more or a quarter less it is not the prediction that was wrong but the
// host that was busy: no more than that is believed.
using PolicyCorrections = std::map<cost::KvPolicy, double>;

// What steps are predicted from.
struct PolicyInputs {
  cost::PolicyCompute compute;
  cost::PolicyModel model;
  cost::PolicyPools pools;
};

// Seconds of a step with all of the load's rows, and its parts. Requires: inputs that the policy's
// function in policy_step.h takes.
cost::PolicyStep StepOf(cost::KvPolicy policy, const PolicyInputs& inputs,
                        const cost::PolicyLoad& load);

// The fastest one, prompts counted, by predictions as far as they were corrected; of those within
// 1% of each other the first with room for the most rows. The current one, if any, stays unless
// another is faster by kWorthAnEpoch, or kWorthATry. Where no candidate can be had it is the first,
// and `why` says that.
//
// With `ends`, inputs as they were at times at which the host was slow, and at which it was fast,
// nobody knows how it will be when the policy serves. Taken is then the policy that loses least to
// the fastest at the end where it loses most (PolicyFigure::worst), which is the fastest one where
// both ends agree; all of the above holds for what they lose in place of their times. `inputs` says
// what a step takes, and nothing of the choice.
// Requires: inputs as StepOf() takes them, load of at least one row, at least one candidate.
PolicyChoice ChoosePolicy(const PolicyInputs& inputs,
                          const std::vector<PolicyCandidate>& candidates,
                          const cost::PolicyLoad& load,
                          std::optional<cost::KvPolicy> current = std::nullopt,
                          const PolicyCorrections& corrections = {},
                          absl::Span<const PolicyInputs> ends = {});

// Bytes of K and V that one row with so much context reads, a token of its context: less where
// layers have a window that is shorter. Requires: context > 0.
double KvBytesReadPerToken(absl::Span<const AttentionDescriptor> layers, double context);

// Steps of one policy as they were of late while it served, and the load they had: sums over
// intervals in which only rows ran, which forget.
class PolicyStepMeter {
 public:
  // In `seconds`, with so many rows all the time and so much context, so many tokens came.
  void Add(double seconds, uint32_t rows, uint64_t context_tokens, uint64_t tokens);

  // Whether a second of service has been seen.
  bool measured() const;
  // Seconds in which each row gets a token. Requires: measured().
  double step_seconds() const { return row_seconds_ / tokens_; }
  // Requires: measured().
  cost::PolicyLoad load() const;

 private:
  double seen_ = 0;
  double seconds_ = 0;
  double row_seconds_ = 0;
  double context_seconds_ = 0;
  double tokens_ = 0;
};

// The load of late: means over the seconds in which rows ran, which forget.
class PolicyLoadMeter {
 public:
  // Rows in so many lanes and all their tokens of context, for so long. Nothing for no rows.
  void Add(double seconds, uint32_t rows, uint64_t context_tokens, uint32_t lanes = 1);
  // So many tokens were generated in these seconds of service, and so many of prompts computed.
  void AddTokens(double seconds, uint64_t generated, uint64_t prompts);

  double seconds() const { return seconds_; }  // So far.
  cost::PolicyLoad load() const;               // Requires: seconds() > 0.
  double lanes() const { return lanes_; }      // That had rows.

 private:
  double seconds_ = 0;
  double rows_ = 0;
  double lanes_ = 0;
  double context_tokens_ = 0;
  double generated_ = 0;  // Tokens of late,
  double prompts_ = 0;    // and those of prompts.
};

}  // namespace lamina::core
