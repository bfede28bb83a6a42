// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hybrid_share.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "policy/fetch_hybrid.h"

namespace lamina::coordinator {
namespace {

constexpr uint64_t kSlotsMax = uint64_t{1} << 31;

// Shares are chosen in sixteenths; one that differs by less than two is not worth a new epoch, in
// which what the prefix cache keeps is gone.
constexpr uint32_t kStep = plan::SlotKinds::kUnit / 16;
constexpr uint32_t kWorthAnEpoch = 2 * kStep;
// A line that explains less of the times' variance is no better than their mean.
constexpr double kRSquaredLeast = 0.8;
constexpr Nanos kSettledFor = Seconds(60);

}  // namespace

uint32_t SlotsOfKinds(const TokenBytes& bytes, plan::SlotKinds kinds, uint64_t capacity) {
  const auto taken = [&](uint64_t slots) {
    const auto count = static_cast<uint32_t>(slots);
    return kinds.KvOf(count) * bytes.kv + kinds.ActivationsOf(count) * bytes.activation;
  };
  // Whole blocks by bisection: what slots take grows with them.
  uint64_t fit = 0;
  uint64_t too_many = kSlotsMax / plan::SlotKinds::kBlockSlots;
  while (too_many - fit > 1) {
    const uint64_t blocks = (fit + too_many) / 2;
    (taken(blocks * plan::SlotKinds::kBlockSlots) <= capacity ? fit : too_many) = blocks;
  }
  return static_cast<uint32_t>(fit * plan::SlotKinds::kBlockSlots);
}

uint32_t ShareInSteps(double share) {
  const auto steps = static_cast<uint32_t>(std::lround(share * plan::SlotKinds::kUnit / kStep));
  return std::clamp(steps * kStep, kStep, plan::SlotKinds::kUnit);
}

HybridShare::HybridShare(const EngineOptions& options)
    : options_(options), share_(options.fetch.hybrid->share) {
  const uint32_t percent = share_ * 100 / plan::SlotKinds::kUnit;
  why_ = options.fetch.hybrid->automatic
             ? absl::StrCat(percent, "% of tokens held as activations until links are measured")
             : absl::StrCat(percent, "% of tokens held as activations, as configured");
  if (options.fetch.hybrid->automatic &&
      ActivationBytesPerToken(options.fetch, options.layers.size()) >=
          KvBytesPerToken(options.layers)) {
    share_ = 0;
    why_ = absl::StrCat(
        "no token held as an activation: one has ",
        ActivationBytesPerToken(options.fetch, options.layers.size()) / options.layers.size(),
        " bytes in a layer, no fewer than K and V with ",
        KvBytesPerToken(options.layers) / options.layers.size());
  }
}

bool HybridShare::Settle(Nanos now, const core::FetchRates& rates,
                         const telemetry::FittedSeconds& making, uint64_t capacity) {
  const bool attention_is_new = rates.attend_seconds > 0 && !with_attention_;
  if (!options_.fetch.hybrid->automatic || share_ == 0 || !rates.measured() ||
      (settled_.has_value() && now - *settled_ < kSettledFor && !attention_is_new)) {
    return false;
  }
  const auto layers = static_cast<double>(options_.layers.size());
  const policy::HybridBytes bytes{
      .kv = static_cast<double>(KvBytesPerToken(options_.layers)) / layers,
      .activation =
          static_cast<double>(ActivationBytesPerToken(options_.fetch, options_.layers.size())) /
          layers,
      .memory = static_cast<double>(capacity) / layers};
  const policy::HybridProfile profile{
      .load_kv = {.slope = bytes.kv / rates.bytes_per_second},
      .load_activations = {.slope = bytes.activation / rates.bytes_per_second},
      .make = making.r_squared >= kRSquaredLeast
                  ? policy::TimeLine{.fixed = making.fixed, .slope = making.slope}
                  : policy::TimeLine{.slope = rates.recompute_seconds},
      .attend = rates.attend_seconds,
      .load_weights = rates.weights_seconds};
  const uint32_t share = ShareInSteps(policy::AllocateHybrid(profile, bytes).share());
  const bool first = !settled_.has_value() || attention_is_new;
  settled_ = now;
  with_attention_ = rates.attend_seconds > 0;
  const uint32_t differs = share > share_ ? share - share_ : share_ - share;
  if (differs < (first ? kStep : kWorthAnEpoch)) {
    why_ = policy::DescribeHybrid(profile, static_cast<double>(share_) / plan::SlotKinds::kUnit);
    return false;
  }
  share_ = share;
  why_ = policy::DescribeHybrid(profile, static_cast<double>(share) / plan::SlotKinds::kUnit);
  return true;
}

}  // namespace lamina::coordinator
