// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_hybrid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace lamina::policy {
namespace {

// Two splits within this factor are as good but for rounding: the one with fewer activations is
// taken.
constexpr double kBetter = 1 - 1e-9;

HybridTokens With(const HybridTokens& tokens, const HybridRequest& request) {
  return {.activations = tokens.activations + request.activations,
          .kv = tokens.kv + request.kv,
          .resident = tokens.resident + request.resident};
}

double LongerSide(const HybridProfile& profile, const HybridTokens& tokens) {
  return std::max(LinkSeconds(profile, tokens), DeviceSeconds(profile, tokens));
}

// Equation 13; a mini-batch in which the device makes nothing is out of balance beyond measure.
double Imbalance(const HybridProfile& profile, const HybridTokens& tokens) {
  const double make = DeviceSeconds(profile, tokens);
  return make > 0 ? std::abs(1 - LinkSeconds(profile, tokens) / make)
                  : std::numeric_limits<double>::infinity();
}

}  // namespace

FittedLine FitLine(absl::Span<const TimeSample> samples) {
  double tokens = 0;
  double seconds = 0;
  for (const TimeSample& sample : samples) {
    tokens += sample.tokens / static_cast<double>(samples.size());
    seconds += sample.seconds / static_cast<double>(samples.size());
  }
  double both = 0;
  double spread = 0;
  for (const TimeSample& sample : samples) {
    both += (sample.tokens - tokens) * (sample.seconds - seconds);
    spread += (sample.tokens - tokens) * (sample.tokens - tokens);
  }
  FittedLine fitted;
  fitted.line.slope = std::max(0.0, both / spread);
  fitted.line.fixed = seconds - fitted.line.slope * tokens;
  if (fitted.line.fixed < 0) {  // The best line through the origin instead.
    double product = 0;
    double squares = 0;
    for (const TimeSample& sample : samples) {
      product += sample.tokens * sample.seconds;
      squares += sample.tokens * sample.tokens;
    }
    fitted.line = {.fixed = 0, .slope = product / squares};
  }
  double unexplained = 0;
  double variance = 0;
  for (const TimeSample& sample : samples) {
    const double missed = sample.seconds - fitted.line.At(sample.tokens);
    unexplained += missed * missed;
    variance += (sample.seconds - seconds) * (sample.seconds - seconds);
  }
  fitted.r_squared = variance > 0 ? 1 - unexplained / variance : 1;
  return fitted;
}

double LinkSeconds(const HybridProfile& profile, const HybridTokens& tokens) {
  return profile.load_weights + profile.load_activations.At(tokens.activations) +
         profile.load_kv.At(tokens.kv);
}

double DeviceSeconds(const HybridProfile& profile, const HybridTokens& tokens) {
  return profile.make.At(tokens.resident + tokens.activations) + profile.attend * tokens.all() +
         profile.dense;
}

HybridTokens WithShare(const HybridProfile& profile, double tokens, double share) {
  const double room = std::min(profile.resident, tokens);
  return {
      .activations = share * (tokens - room), .kv = (1 - share) * tokens, .resident = share * room};
}

HybridTokens AllocateHybrid(const HybridProfile& profile, double tokens) {
  // With tokens of both kinds each side is a straight line over the share, so that the longer one
  // is shortest where they cross, or at an end.
  const double come = tokens - std::min(profile.resident, tokens);  // If all are activations.
  const double lag = profile.load_weights + (come > 0 ? profile.load_activations.fixed : 0) +
                     profile.load_kv.fixed + profile.load_kv.slope * tokens - profile.make.fixed -
                     profile.attend * tokens - profile.dense;
  const double closes =
      (profile.make.slope + profile.load_kv.slope) * tokens - profile.load_activations.slope * come;
  const double crossing = closes > 0 ? std::clamp(lag / closes, 0.0, 1.0) : 0;
  HybridTokens best{.kv = tokens};
  for (const double share : {crossing, 1.0}) {
    const HybridTokens other = WithShare(profile, tokens, share);
    if (LongerSide(profile, other) < kBetter * LongerSide(profile, best)) {
      best = other;
    }
  }
  return best;
}

std::vector<std::vector<uint32_t>> PackMiniBatches(absl::Span<const HybridRequest> requests,
                                                   const HybridProfile& profile,
                                                   const HybridRequest& buffers) {
  std::vector<std::vector<uint32_t>> batches;
  std::vector<bool> taken(requests.size());
  // The first request that goes into an open mini-batch with these tokens: into an empty one any.
  const auto next = [&](bool empty, const HybridTokens& tokens) -> std::optional<uint32_t> {
    for (uint32_t i = 0; i < requests.size(); ++i) {
      const HybridTokens with = With(tokens, requests[i]);
      const bool fits = with.activations <= buffers.activations && with.kv <= buffers.kv;
      const bool pays = fits && Imbalance(profile, with) < Imbalance(profile, tokens);
      if (!taken[i] && (empty || pays)) {
        return i;
      }
    }
    return std::nullopt;
  };
  for (size_t left = requests.size(); left > 0;) {
    std::vector<uint32_t>& batch = batches.emplace_back();
    HybridTokens tokens;
    while (const std::optional<uint32_t> request = next(batch.empty(), tokens)) {
      taken[*request] = true;
      batch.push_back(*request);
      tokens = With(tokens, requests[*request]);
      --left;
    }
  }
  return batches;
}

std::string DescribeHybrid(const HybridProfile& profile, double share, double tokens) {
  constexpr double kMicro = 1e6;
  if (profile.load_activations.slope >= profile.load_kv.slope) {
    return absl::StrFormat(
        "no token held as an activation: one takes %.3g us on the link, no less than K and V with "
        "%.3g us",
        profile.load_activations.slope * kMicro, profile.load_kv.slope * kMicro);
  }
  std::vector<std::string> times = {
      absl::StrFormat("K and V of one take %.3g us on the link", profile.load_kv.slope * kMicro),
      absl::StrFormat("its activation %.3g us", profile.load_activations.slope * kMicro),
      absl::StrFormat("making K and V of it %.3g us", profile.make.slope * kMicro),
      absl::StrFormat("attention %.3g us", profile.attend * kMicro)};
  if (profile.make.fixed > 0) {
    absl::StrAppendFormat(&times[2], " behind %.3g us for a layer's first",
                          profile.make.fixed * kMicro);
  }
  if (profile.load_weights > 0) {
    times.push_back(absl::StrFormat("the layer's weights %.3g us", profile.load_weights * kMicro));
  }
  if (profile.dense > 0) {
    times.push_back(absl::StrFormat("a layer's dense part %.3g us in a step of %.0f tokens",
                                    profile.dense * kMicro, tokens));
  }
  times.back().insert(0, "and ");
  return absl::StrFormat("%.0f%% of tokens held as activations: %s", share * 100,
                         absl::StrJoin(times, ", "));
}

}  // namespace lamina::policy
