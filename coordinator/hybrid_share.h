// SPDX-License-Identifier: Apache-2.0
//
// HybridShare: policy fetch_hybrid: which share of the memory nodes' slots holds activations. It is
// settled by the cluster file, or by what an epoch has measured of its links and of making K and V,
// by how much stays on the compute node, and by the load of late; a new share takes a new epoch,
// which begins when nothing runs.
//
// Threading: the engine's thread; time is passed in.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.h"
#include "coordinator/core/fetch_planning.h"
#include "coordinator/core/policy_choice.h"
#include "coordinator/engine_options.h"
#include "cost/layer_seconds.h"
#include "plan/slot_kinds.h"
#include "telemetry/fitted_seconds.h"

namespace lamina::coordinator {

struct TokenBytes {
  uint64_t kv = 0;
  uint64_t activation = 0;
};

// How many slots of these kinds so much memory has.
uint32_t SlotsOfKinds(const TokenBytes& bytes, plan::SlotKinds kinds, uint64_t capacity);

// A share of activations in all tokens, from more than 0 to 1, in the steps that shares are chosen
// in, as plan::SlotKinds::kUnit-ths.
uint32_t ShareInSteps(double share);

// Whether shares in these steps differ by so much that the other one is worth a new epoch, in which
// what the prefix cache keeps is gone.
bool IsWorthAnEpoch(uint32_t share, uint32_t other);

// Decode rows, lanes that have some, and all their tokens of context.
struct HybridLoad {
  uint32_t rows = 0;
  uint32_t lanes = 0;
  uint64_t context_tokens = 0;
};

// What an epoch has measured.
struct HybridMeasures {
  core::FetchRates rates;
  // The line of making K and V, used where it explains the times well enough; else the mean in
  // `rates` is.
  telemetry::FittedSeconds making;
  cost::UnitTimes slice;  // A lane's slice over its rows, without attention. Zeros: not measured.
  uint64_t capacity = 0;  // Bytes of the memory nodes.
};

class HybridShare {
 public:
  // Requires: options.fetch.hybrid. The options must outlive this.
  explicit HybridShare(const EngineOptions& options);

  // The share that the epoch which is formed next has, and for people why.
  uint32_t share() const { return share_; }
  const std::string& why() const { return why_; }

  // An epoch begins, which has yet to measure its links as they are used.
  void BeginEpoch() { served_seconds_ = 0; }
  // Requests run: whether the load is to be told, every few milliseconds.
  bool WantsLoad(Nanos now) const;
  void SawLoad(Nanos now, const HybridLoad& load);
  // Nothing runs in an epoch of this share, which has measured so much. Whether another epoch is to
  // begin. While no load has been seen, a step is taken to read all that the memory holds. What was
  // measured once holds until it is measured anew.
  bool Settle(Nanos now, HybridMeasures measures);

 private:
  // A step, as far as its load is known.
  struct Step {
    double tokens = 0;
    double resident = 0;  // So many of these have places for activations on the compute node.
    double lanes = 1;     // That have rows.
    double dense = 0;     // Seconds of its dense layers, in one layer.
    bool seen = false;
  };
  Step StepOf(const HybridMeasures& measures) const;
  // Fills in what a node that started again has not measured since.
  void Complete(HybridMeasures& measures);

  const EngineOptions& options_;
  uint32_t share_ = 0;
  std::string why_;
  core::PolicyLoadMeter meter_;
  Nanos load_seen_ = 0;           // When the load was last told, or nothing ran.
  std::optional<Nanos> settled_;  // When a measured share was taken last,
  bool with_attention_ = false;   // whether attention had been measured too,
  bool with_load_ = false;        // and a load been seen.
  double served_seconds_ = 0;     // In which rows decoded, since then and in this epoch.
  double attend_seconds_ = 0;     // The last that were measured, of attention
  cost::UnitTimes slice_;         // and of a slice.
};

}  // namespace lamina::coordinator
