// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_recompute.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace lamina::policy {

namespace {

using Seconds = double (*)(const RecomputeProfile&, uint64_t, uint64_t);

// Next to the kink, or at an end.
RecomputeSplit Best(const RecomputeProfile& profile, uint64_t tokens, double kink,
                    Seconds seconds_of) {
  const auto below =
      static_cast<uint64_t>(std::clamp(kink, 0.0, 1.0) * static_cast<double>(tokens));
  RecomputeSplit best{.seconds = seconds_of(profile, tokens, 0)};
  for (const uint64_t candidate : {below, std::min(tokens, below + 1), tokens}) {
    const double seconds = seconds_of(profile, tokens, candidate);
    if (seconds < best.seconds) {
      best = {.recomputed = candidate, .seconds = seconds};
    }
  }
  return best;
}

// What full transfer takes, of each token.
double LinkSecondsOfAToken(const RecomputeProfile& profile, uint64_t tokens) {
  return profile.kv + profile.weights / static_cast<double>(std::max<uint64_t>(tokens, 1));
}

}  // namespace

double RecomputeSeconds(const RecomputeProfile& profile, uint64_t tokens, uint64_t recomputed) {
  const auto made = static_cast<double>(recomputed);
  const auto fetched = static_cast<double>(tokens - recomputed);
  return profile.activation * made +
         std::max(profile.make * made, profile.weights + profile.kv * fetched);  // (1)
}

double RecomputeSecondsOfLanes(const RecomputeProfile& profile, uint64_t tokens,
                               uint64_t recomputed) {
  const auto made = static_cast<double>(recomputed);
  const auto fetched = static_cast<double>(tokens - recomputed);
  return std::max(profile.weights + profile.activation * made + profile.kv * fetched,
                  profile.make * made);  // (2)
}

RecomputeSplit BestRecomputeSplit(const RecomputeProfile& profile, uint64_t tokens) {
  const double kink = LinkSecondsOfAToken(profile, tokens) / (profile.kv + profile.make);
  return Best(profile, tokens, kink, RecomputeSeconds);
}

RecomputeSplit BestRecomputeSplitOfLanes(const RecomputeProfile& profile, uint64_t tokens) {
  const double slope = profile.kv + profile.make - profile.activation;
  // Without one an activation takes no less than K and V, and nothing is gained.
  const double kink = slope > 0 ? LinkSecondsOfAToken(profile, tokens) / slope : 0;
  return Best(profile, tokens, kink, RecomputeSecondsOfLanes);
}

std::string DescribeRecompute(const RecomputeProfile& profile, double share) {
  constexpr double kMicro = 1e6;
  if (profile.activation >= profile.kv) {
    return absl::StrFormat(
        "nothing recomputed: an activation takes %.3g us on the link, no less than K and V with "
        "%.3g us",
        profile.activation * kMicro, profile.kv * kMicro);
  }
  return absl::StrFormat(
      "%.0f%% of tokens recomputed: K and V of one take %.3g us on the link, its activation %.3g "
      "us, %smaking them %.3g us%s",
      share * 100, profile.kv * kMicro, profile.activation * kMicro,
      profile.weights > 0 ? "" : "and ", profile.make * kMicro,
      profile.weights > 0
          ? absl::StrFormat(", and the layer's weights %.3g us", profile.weights * kMicro)
          : "");
}

}  // namespace lamina::policy
