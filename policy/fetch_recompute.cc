// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_recompute.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"

namespace lamina::policy {

// Next to a kink, or at an end.
RecomputeSplit BestRecomputeSplit(const cost::RecomputeProfile& profile, uint64_t tokens,
                                  cost::ActivationsCome come) {
  const auto all = static_cast<double>(tokens);
  const auto seconds_of = [&](uint64_t recomputed) {
    return cost::RecomputeLayerSeconds(profile, all, static_cast<double>(recomputed), come);
  };
  std::vector<uint64_t> candidates = {tokens};
  for (const double kink : cost::RecomputeKinks(profile, all, come)) {
    const auto below = static_cast<uint64_t>(std::clamp(kink, 0.0, all));
    candidates.push_back(below);
    candidates.push_back(std::min(tokens, below + 1));
  }
  std::sort(candidates.begin(), candidates.end());  // The least of several that are as good.
  RecomputeSplit best{.seconds = seconds_of(0)};
  for (const uint64_t candidate : candidates) {
    if (const double seconds = seconds_of(candidate); seconds < best.seconds) {
      best = {.recomputed = candidate, .seconds = seconds};
    }
  }
  return best;
}

std::string DescribeRecompute(const cost::RecomputeProfile& profile, double share) {
  constexpr double kMicro = 1e6;
  if (profile.activation >= profile.kv) {
    return absl::StrFormat(
        "nothing recomputed: an activation takes %.3g us on the link, no less than K and V with "
        "%.3g us",
        profile.activation * kMicro, profile.kv * kMicro);
  }
  return absl::StrFormat(
      "%.0f%% of tokens recomputed: K and V of one take %.3g us on the link, its activation %.3g "
      "us, %smaking them %.3g us%s%s",
      share * 100, profile.kv * kMicro, profile.activation * kMicro,
      profile.weights > 0 ? "" : "and ", profile.make * kMicro,
      profile.weights > 0
          ? absl::StrFormat(", and the layer's weights %.3g us", profile.weights * kMicro)
          : "",
      profile.resident > 0 ? absl::StrFormat("; activations of %.0f tokens are on the compute node",
                                             profile.resident)
                           : "");
}

}  // namespace lamina::policy
