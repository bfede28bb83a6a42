// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_recompute.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace lamina::policy {

double RecomputeSeconds(const RecomputeProfile& profile, uint64_t tokens, uint64_t recomputed) {
  const auto made = static_cast<double>(recomputed);
  const auto fetched = static_cast<double>(tokens - recomputed);
  return profile.activation * made + std::max(profile.make * made, profile.kv * fetched);
}

RecomputeSplit BestRecomputeSplit(const RecomputeProfile& profile, uint64_t tokens) {
  const double kink = profile.kv / (profile.kv + profile.make) * static_cast<double>(tokens);
  const uint64_t below = std::min(tokens, static_cast<uint64_t>(kink));
  RecomputeSplit best{.seconds = RecomputeSeconds(profile, tokens, 0)};
  for (const uint64_t candidate : {below, std::min(tokens, below + 1), tokens}) {
    const double seconds = RecomputeSeconds(profile, tokens, candidate);
    if (seconds < best.seconds) {
      best = {.recomputed = candidate, .seconds = seconds};
    }
  }
  return best;
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
      "us, and making them %.3g us",
      share * 100, profile.kv * kMicro, profile.activation * kMicro, profile.make * kMicro);
}

}  // namespace lamina::policy
