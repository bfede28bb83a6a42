// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_hybrid.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"

namespace lamina::policy {
namespace {

// The tokens at which a line takes so long; 0 if it takes longer with the first.
double TokensIn(const TimeLine& line, double seconds) {
  return line.slope > 0 ? std::max(0.0, (seconds - line.fixed) / line.slope) : 0;
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
  return profile.make.At(profile.resident + tokens.activations) +
         profile.attend * (profile.resident + tokens.activations + tokens.kv);
}

HybridTokens AllocateHybrid(const HybridProfile& profile, const HybridBytes& bytes) {
  // How much more the device has to do for an activation than the link, and the link for K and V
  // than the device.
  const double gain = profile.make.slope + profile.attend - profile.load_activations.slope;
  const double kv_gain = profile.load_kv.slope - profile.attend;
  if (profile.load_activations.slope >= profile.load_kv.slope || kv_gain <= 0) {
    return {.kv = bytes.memory / bytes.kv};
  }
  const double most = bytes.memory / bytes.activation;
  HybridTokens first;
  const double resident = profile.make.At(profile.resident) + profile.attend * profile.resident;
  if (resident < profile.load_weights) {
    // T_kv_gen(a0 + a) + attend (a0 + a) = T_load_w + T_load_act(a)
    const double behind = profile.load_weights + profile.load_activations.fixed -
                          profile.make.fixed -
                          (profile.make.slope + profile.attend) * profile.resident;
    first.activations = gain > 0 ? std::max(0.0, behind / gain) : most;
  } else {
    // T_load_kv(k) = T_kv_gen(a0) + attend (a0 + k) - T_load_w
    first.kv = TokensIn({.fixed = profile.load_kv.fixed, .slope = kv_gain},
                        resident - profile.load_weights);
  }
  first.activations = std::min(first.activations, most);
  first.kv = std::min(first.kv, bytes.memory / bytes.kv);
  const double left = bytes.memory - first.activations * bytes.activation - first.kv * bytes.kv;
  // The device's time grows by as much as the link's.
  if (gain <= 0) {
    first.activations += left / bytes.activation;
    return first;
  }
  // gain * a = kv_gain * k;  a * bytes + k * bytes = what is left
  const double kv_for_activation = gain / kv_gain;
  const double activations = left / (bytes.activation + kv_for_activation * bytes.kv);
  return {.activations = first.activations + activations,
          .kv = first.kv + activations * kv_for_activation};
}

std::vector<std::vector<uint32_t>> PackMiniBatches(absl::Span<const HybridRequest> requests,
                                                   const HybridProfile& profile,
                                                   const HybridRequest& buffers) {
  std::vector<std::vector<uint32_t>> batches;
  std::vector<bool> taken(requests.size());
  for (size_t left = requests.size(); left > 0;) {
    std::vector<uint32_t>& batch = batches.emplace_back();
    HybridTokens tokens;
    for (uint32_t i = 0; i < requests.size(); ++i) {
      if (taken[i]) {
        continue;
      }
      const HybridTokens with{.activations = tokens.activations + requests[i].activations,
                              .kv = tokens.kv + requests[i].kv};
      const bool fits = with.activations <= buffers.activations && with.kv <= buffers.kv;
      // The first one goes anywhere.
      if (!batch.empty() && (!fits || Imbalance(profile, with) >= Imbalance(profile, tokens))) {
        continue;
      }
      taken[i] = true;
      batch.push_back(i);
      tokens = with;
      --left;
    }
  }
  return batches;
}

std::string DescribeHybrid(const HybridProfile& profile, double share) {
  constexpr double kMicro = 1e6;
  if (profile.load_activations.slope >= profile.load_kv.slope) {
    return absl::StrFormat(
        "no token held as an activation: one takes %.3g us on the link, no less than K and V with "
        "%.3g us",
        profile.load_activations.slope * kMicro, profile.load_kv.slope * kMicro);
  }
  return absl::StrFormat(
      "%.0f%% of tokens held as activations: K and V of one take %.3g us on the link, its "
      "activation %.3g us, making K and V of it %.3g us%s, %sattention %.3g us%s",
      share * 100, profile.load_kv.slope * kMicro, profile.load_activations.slope * kMicro,
      profile.make.slope * kMicro,
      profile.make.fixed > 0
          ? absl::StrFormat(" behind %.3g us for a layer's first", profile.make.fixed * kMicro)
          : "",
      profile.load_weights > 0 ? "" : "and ", profile.attend * kMicro,
      profile.load_weights > 0
          ? absl::StrFormat(", and the layer's weights %.3g us", profile.load_weights * kMicro)
          : "");
}

}  // namespace lamina::policy
