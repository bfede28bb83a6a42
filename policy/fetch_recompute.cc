// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_recompute.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "absl/strings/str_format.h"

namespace lamina::policy {

namespace {

using Seconds = double (*)(const RecomputeProfile&, uint64_t, uint64_t);

// The number of tokens that close a gap of so many seconds, if each closes some of it.
double Crossing(double seconds, double closes) { return closes > 0 ? seconds / closes : 0; }

// Next to one of these kinks, or at an end.
RecomputeSplit Best(const RecomputeProfile& profile, uint64_t tokens,
                    std::initializer_list<double> kinks, Seconds seconds_of) {
  std::vector<uint64_t> candidates = {tokens};
  for (const double kink : kinks) {
    const auto below = static_cast<uint64_t>(std::clamp(kink, 0.0, static_cast<double>(tokens)));
    candidates.push_back(below);
    candidates.push_back(std::min(tokens, below + 1));
  }
  std::sort(candidates.begin(), candidates.end());  // The least of several that are as good.
  RecomputeSplit best{.seconds = seconds_of(profile, tokens, 0)};
  for (const uint64_t candidate : candidates) {
    const double seconds = seconds_of(profile, tokens, candidate);
    if (seconds < best.seconds) {
      best = {.recomputed = candidate, .seconds = seconds};
    }
  }
  return best;
}

// What full transfer takes on the link.
double FullTransferSeconds(const RecomputeProfile& profile, uint64_t tokens) {
  return profile.weights + profile.kv * static_cast<double>(tokens);
}

// How many of the tokens that are made again have activations that come.
double ComingOf(const RecomputeProfile& profile, uint64_t recomputed) {
  return static_cast<double>(recomputed - std::min(recomputed, profile.resident));
}

}  // namespace

double RecomputeSeconds(const RecomputeProfile& profile, uint64_t tokens, uint64_t recomputed) {
  const double coming = ComingOf(profile, recomputed);
  const auto fetched = static_cast<double>(tokens - recomputed);
  const double activations = profile.activation * coming;
  const double kept = profile.make * (static_cast<double>(recomputed) - coming);
  return std::max(std::max(kept, activations) + profile.make * coming,
                  activations + (profile.weights + profile.kv * fetched));  // (4)
}

double RecomputeSecondsOfLanes(const RecomputeProfile& profile, uint64_t tokens,
                               uint64_t recomputed) {
  const auto fetched = static_cast<double>(tokens - recomputed);
  return std::max(
      profile.weights + profile.activation * ComingOf(profile, recomputed) + profile.kv * fetched,
      profile.make * static_cast<double>(recomputed));  // (5)
}

RecomputeSplit BestRecomputeSplit(const RecomputeProfile& profile, uint64_t tokens) {
  const double link = FullTransferSeconds(profile, tokens);
  const auto resident = static_cast<double>(profile.resident);
  const double closes = profile.kv + profile.make;
  return Best(profile, tokens,
              {resident, Crossing(link, closes), Crossing(link + profile.make * resident, closes),
               Crossing(link - profile.activation * resident, closes - profile.activation)},
              RecomputeSeconds);
}

RecomputeSplit BestRecomputeSplitOfLanes(const RecomputeProfile& profile, uint64_t tokens) {
  const double link = FullTransferSeconds(profile, tokens);
  const auto resident = static_cast<double>(profile.resident);
  const double closes = profile.kv + profile.make;
  return Best(profile, tokens,
              {resident, Crossing(link, closes),
               Crossing(link - profile.activation * resident, closes - profile.activation)},
              RecomputeSecondsOfLanes);
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
      "us, %smaking them %.3g us%s%s",
      share * 100, profile.kv * kMicro, profile.activation * kMicro,
      profile.weights > 0 ? "" : "and ", profile.make * kMicro,
      profile.weights > 0
          ? absl::StrFormat(", and the layer's weights %.3g us", profile.weights * kMicro)
          : "",
      profile.resident > 0
          ? absl::StrFormat("; activations of %d tokens are on the compute node", profile.resident)
          : "");
}

}  // namespace lamina::policy
