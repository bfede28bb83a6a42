// SPDX-License-Identifier: Apache-2.0
//
// HybridShare: policy fetch_hybrid: which share of the memory nodes' slots holds activations. It is
// settled by the cluster file, or by what an epoch has measured of its links and of making K and V;
// a new share takes a new epoch, which begins when nothing runs.
//
// Threading: the engine's thread; time is passed in.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.h"
#include "coordinator/core/fetch_planning.h"
#include "coordinator/engine_options.h"
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

class HybridShare {
 public:
  // Requires: options.fetch.hybrid. The options must outlive this.
  explicit HybridShare(const EngineOptions& options);

  // The share that the epoch which is formed next has, and for people why.
  uint32_t share() const { return share_; }
  const std::string& why() const { return why_; }

  // Nothing runs in an epoch of this share, which has measured `rates`, over memory nodes of so
  // many bytes. Whether another epoch is to begin.
  // `making`: the line of making K and V, used where it explains the times well enough; else the
  // mean in `rates` is.
  bool Settle(Nanos now, const core::FetchRates& rates, const telemetry::FittedSeconds& making,
              uint64_t capacity);

 private:
  const EngineOptions& options_;
  uint32_t share_ = 0;
  std::string why_;
  std::optional<Nanos> settled_;  // When a measured share was taken last,
  bool with_attention_ = false;   // and whether attention had been measured too.
};

}  // namespace lamina::coordinator
