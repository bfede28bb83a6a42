// SPDX-License-Identifier: Apache-2.0
//
// What `policy: auto` picks, and why: the policy whose decode step takes less time for a load, by
// what the compute node measured when it started. Pure functions.
//
// Determinism: same arguments, same answer.

#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "cost/policy_step.h"
#include "plan/policy_times.h"

namespace lamina::core {

struct PolicyChoice {
  bool local = false;
  // "16 rows at 1024 tokens: a step takes 66.1 ms (dense 66.1, attention 45.0, 2 lanes), with local
  // 78.2 ms (dense 50.1, attention 28.1)"
  std::string why;
  double local_seconds = 0;
  double pools_seconds = 0;  // 0: there are no memory nodes.
};

// Steps of the other policy must be shorter than those of the current one by this factor to make it
// worth an epoch.
inline constexpr double kWorthAnEpoch = 0.9;

// The factor where the current policy's steps are measured while it serves, and the other's only
// predicted: so little is worth a try, since then both are measured.
inline constexpr double kWorthATry = 0.97;

// Steps as they were measured while a policy served, as a multiple of what is predicted for the
// same load; 0: not measured yet. Beyond a third more or a quarter less it is not the prediction
// that was wrong but the host that was busy: no more than that is believed.
struct PolicyCorrections {
  double local = 0;
  double pools = 0;
};

enum class CurrentPolicy : uint8_t { kNone, kLocal, kPools };

// The faster one, by predictions as far as they were corrected; `local` where there are no memory
// nodes. The current one, if any, stays unless the other one is faster by kWorthAnEpoch, or
// kWorthATry. Requires: times.measured(), load of at least one row.
PolicyChoice ChoosePolicy(const plan::PolicyTimes& times, const cost::PolicyModel& model,
                          const cost::PolicyPools& pools, const cost::PolicyLoad& load,
                          CurrentPolicy current = CurrentPolicy::kNone,
                          const PolicyCorrections& corrections = {});

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
  // Rows and all their tokens of context, for so long. Nothing for no rows.
  void Add(double seconds, uint32_t rows, uint64_t context_tokens);

  double seconds() const { return seconds_; }  // So far.
  cost::PolicyLoad load() const;               // Requires: seconds() > 0.

 private:
  double seconds_ = 0;
  double rows_ = 0;
  double context_tokens_ = 0;
};

}  // namespace lamina::core
