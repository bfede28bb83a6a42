// SPDX-License-Identifier: Apache-2.0
//
// What `policy: auto` picks, and why: the policy whose decode step takes less time for a load, by
// what the compute node measured when it started. Pure functions.
//
// A step of `local`, with all cores of the compute node:
//
//   (layers - 1) * slice(rows) + tail(rows) + bytes of K and V / attention
//
// A step of `attend_remote` over n lanes of rows / n each, where D and A are what dense layers and
// attention of one lane take, in the memory nodes' cores and in those that are left to compute:
//
//   max(n * D, n * A, D + A), and with several lanes a part of the shorter side (kUnhidden)
//
// Attention and slices that share a memory are measured side by side, so that what they take from
// each other is in the figures; that memory nodes attend as fast as the compute node does with as
// much bandwidth, and what a layer waits for the exchange (kExchangeSeconds), is assumed. Prompts
// are left out.
//
// Determinism: same arguments, same answer.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/policy_times.h"

namespace lamina::core {

// Decode rows of a step, and tokens of context of each.
struct PolicyLoad {
  double rows = 0;
  double context = 0;
};

struct PolicyModel {
  uint32_t layers = 0;
  double kv_bytes_per_token = 0;  // Of all layers.
};

// The other policy's side.
struct PolicyPools {
  double attention = 0;    // Bytes of K and V a second of all memory nodes; 0: there are none.
  uint32_t lanes_max = 1;  // With `lanes_auto` any number up to it.
  bool lanes_auto = false;
};

// Seconds of a step, and of its parts.
struct PolicyStep {
  double seconds = 0;
  double dense = 0;      // Slices and tails of all lanes, on the compute node.
  double attention = 0;  // Of all lanes, the exchange included.
  uint32_t lanes = 1;
};

// By straight lines between the sizes that were measured, and on beyond the last one.
// Requires: times not empty, rows > 0.
plan::SliceTimes TimesOf(const std::vector<plan::SliceTimes>& times, double rows);

PolicyStep LocalStep(const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyLoad& load);

// With the fastest number of lanes. Requires: pools.attention > 0.
PolicyStep PoolsStep(const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load);

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

enum class CurrentPolicy : uint8_t { kNone, kLocal, kPools };

// The faster one; `local` where there are no memory nodes. The current one, if any, stays unless
// the other one is faster by kWorthAnEpoch. Requires: times.measured(), load of at least one row.
PolicyChoice ChoosePolicy(const plan::PolicyTimes& times, const PolicyModel& model,
                          const PolicyPools& pools, const PolicyLoad& load,
                          CurrentPolicy current = CurrentPolicy::kNone);

// The load of late: means over the seconds in which rows ran, which forget.
class PolicyLoadMeter {
 public:
  // Rows and all their tokens of context, for so long. Nothing for no rows.
  void Add(double seconds, uint32_t rows, uint64_t context_tokens);

  double seconds() const { return seconds_; }  // So far.
  PolicyLoad load() const;                     // Requires: seconds() > 0.

 private:
  double seconds_ = 0;
  double rows_ = 0;
  double context_tokens_ = 0;
};

}  // namespace lamina::core
