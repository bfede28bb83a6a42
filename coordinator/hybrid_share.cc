// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hybrid_share.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "policy/fetch_hybrid.h"

namespace lamina::coordinator {
namespace {

constexpr uint64_t kSlotsMax = uint64_t{1} << 31;

// Shares are chosen in sixteenths; one that differs by less than two is not worth a new epoch.
constexpr uint32_t kStep = plan::SlotKinds::kUnit / 16;
constexpr uint32_t kWorthAnEpoch = 2 * kStep;
constexpr Nanos kSettledFor = Seconds(60);
// The load is looked at so often while requests run, and counts once they have decoded for so long:
// a request by which somebody tries the cluster is none.
constexpr Nanos kLoadEvery = Millis(5);
constexpr double kLoadSecondsMin = 0.25;
// No turn of the engine's is longer, but for one in which it stood still.
constexpr double kTurnSecondsMax = 1;

// Says to people what stays on the compute node.
std::string WordsOfResident(const EngineOptions& options) {
  const uint32_t each = options.scheduler.ResidentOfEach();
  return each == 0 ? ""
                   : absl::StrCat("; activations of the first ", each,
                                  " tokens of a sequence stay on the compute node");
}

// `dense`: seconds of a step's dense layers, in one layer. Each of `lanes` makes K and V by itself.
// `resident`: tokens that have places for activations on the compute node.
policy::HybridProfile ProfileOf(const EngineOptions& options, const HybridMeasures& measures,
                                double dense, double lanes, double resident) {
  const size_t layers = options.layers.size();
  // A layer's part of a byte that a token has in all of them.
  const double byte_seconds = 1 / (static_cast<double>(layers) * measures.rates.bytes_per_second);
  const auto kv = static_cast<double>(KvBytesPerToken(options.layers));
  const auto activation = static_cast<double>(ActivationBytesPerToken(options.fetch, layers));
  const telemetry::FittedSeconds& making = measures.making;
  return {.load_kv = {.slope = kv * byte_seconds},
          .load_activations = {.slope = activation * byte_seconds},
          .make = making.explains()
                      ? policy::TimeLine{.fixed = making.fixed * lanes, .slope = making.slope}
                      : policy::TimeLine{.slope = measures.rates.recompute_seconds},
          .attend = measures.rates.attend_seconds,
          .load_weights = measures.rates.weights_seconds,
          .resident = resident,
          .dense = dense};
}

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

bool IsWorthAnEpoch(uint32_t share, uint32_t other) {
  return std::max(share, other) - std::min(share, other) >= kWorthAnEpoch;
}

HybridShare::HybridShare(const EngineOptions& options)
    : options_(options), share_(options.fetch.hybrid->share) {
  const uint32_t percent = share_ * 100 / plan::SlotKinds::kUnit;
  why_ = options.fetch.hybrid->automatic
             ? absl::StrCat(percent, "% of tokens held as activations until links are measured")
             : absl::StrCat(percent, "% of tokens held as activations, as configured");
  absl::StrAppend(&why_, WordsOfResident(options));
  if (options.fetch.hybrid->automatic &&
      ActivationBytesPerToken(options.fetch, options.layers.size()) >=
          KvBytesPerToken(options.layers)) {
    share_ = 0;
    why_ = absl::StrCat(
        "no token held as an activation",
        options.fetch.hybrid->keeps_nothing ? ", and nothing kept in fetch.resident" : "",
        ": one has ",
        ActivationBytesPerToken(options.fetch, options.layers.size()) / options.layers.size(),
        " bytes in a layer, no fewer than K and V with ",
        KvBytesPerToken(options.layers) / options.layers.size());
  }
}

bool HybridShare::WantsLoad(Nanos now) const { return now - load_seen_ >= kLoadEvery; }

void HybridShare::SawLoad(Nanos now, const HybridLoad& load) {
  const double seconds = std::min(kTurnSecondsMax, ToSeconds(now - load_seen_));
  meter_.Add(seconds, load.rows, load.context_tokens, load.lanes);
  served_seconds_ += load.rows > 0 ? seconds : 0;
  load_seen_ = now;
}

// Lanes share the link, the weights that come and the device, so that a step is that of all of
// them. Slices are those of layers and the tail.
HybridShare::Step HybridShare::StepOf(const HybridMeasures& measures) const {
  const cost::UnitTimes& slice = measures.slice;
  if (meter_.seconds() < kLoadSecondsMin || slice.fixed + slice.slope <= 0) {
    const double tokens = static_cast<double>(measures.capacity) /
                          static_cast<double>(KvBytesPerToken(options_.layers));
    return {.tokens = tokens,
            .resident = std::min<double>(tokens, options_.scheduler.resident_tokens)};
  }
  const cost::PolicyLoad load = meter_.load();
  const auto layers = static_cast<double>(options_.layers.size());
  // Tokens that every layer's window hides have no slots.
  const double held =
      std::min(load.context, static_cast<double>(options_.scheduler.SlotsAtOnce(UINT32_MAX)));
  // Each has its own places, for its first tokens.
  const double places = std::min<double>(held, options_.scheduler.ResidentOfEach());
  return {.tokens = load.rows * held,
          .resident = load.rows * places,
          .lanes = std::max(1.0, meter_.lanes()),
          .dense = (slice.fixed * meter_.lanes() + slice.slope * load.rows) * (layers + 1) / layers,
          .seen = true};
}

void HybridShare::Complete(HybridMeasures& measures) {
  double& attend_seconds = measures.rates.attend_seconds;
  attend_seconds_ = attend_seconds > 0 ? attend_seconds : attend_seconds_;
  attend_seconds = attend_seconds_;
  slice_ = measures.slice.fixed + measures.slice.slope > 0 ? measures.slice : slice_;
  measures.slice = slice_;
}

bool HybridShare::Settle(Nanos now, HybridMeasures measures) {
  load_seen_ = now;
  if (!options_.fetch.hybrid->automatic || share_ == 0 || !measures.rates.measured()) {
    return false;
  }
  Complete(measures);
  const Step step = StepOf(measures);
  const bool attention = measures.rates.attend_seconds > 0;
  const bool news = (attention && !with_attention_) || (step.seen && !with_load_);
  // An epoch that has served nothing knows of its links what was probed, which must not overrule
  // what the one before measured.
  const bool may_change =
      now - settled_.value_or(now) >= kSettledFor && served_seconds_ >= kLoadSecondsMin;
  if (settled_.has_value() && !may_change && !news) {
    return false;
  }
  const policy::HybridProfile profile =
      ProfileOf(options_, measures, step.dense, step.lanes, step.resident);
  const uint32_t best = ShareInSteps(policy::AllocateHybrid(profile, step.tokens).share());
  const bool first = !settled_.has_value() || news;
  settled_ = now;
  served_seconds_ = 0;
  with_attention_ = attention;
  with_load_ = step.seen;
  const bool begins = first ? best != share_ : IsWorthAnEpoch(best, share_);
  share_ = begins ? best : share_;
  why_ =
      absl::StrCat(policy::DescribeHybrid(
                       profile, static_cast<double>(share_) / plan::SlotKinds::kUnit, step.tokens),
                   WordsOfResident(options_));
  return begins;
}

}  // namespace lamina::coordinator
