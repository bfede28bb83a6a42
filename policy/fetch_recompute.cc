// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_recompute.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace lamina::policy {

// Next to a kink, or at an end.
RecomputeSplit BestRecomputeSplit(const cost::RecomputeProfile& profile, uint64_t tokens,
                                  cost::ActivationsCome come, uint64_t grain) {
  const auto all = static_cast<double>(tokens);
  const auto seconds_of = [&](uint64_t recomputed) {
    return cost::RecomputeLayerSeconds(profile, all, static_cast<double>(recomputed), come);
  };
  std::vector<uint64_t> candidates = {tokens};
  for (const double kink : cost::RecomputeKinks(profile, all, come)) {
    const uint64_t below = static_cast<uint64_t>(std::clamp(kink, 0.0, all)) / grain * grain;
    candidates.push_back(below);
    candidates.push_back(std::min(tokens, below + grain));
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
  std::vector<std::string> times = {
      absl::StrFormat("K and V of one take %.3g us on the link", profile.kv * kMicro),
      absl::StrFormat("its activation %.3g us", profile.activation * kMicro),
      absl::StrFormat("making them %.3g us", profile.make * kMicro)};
  if (profile.weights > 0) {
    times.push_back(absl::StrFormat("the layer's weights %.3g us", profile.weights * kMicro));
  }
  if (profile.other_work > 0) {
    times.push_back(absl::StrFormat("attention and dense layers %.3g us of a layer",
                                    profile.other_work * kMicro));
  }
  times.back().insert(0, "and ");
  std::string words =
      absl::StrFormat("%.0f%% of tokens recomputed: %s", share * 100, absl::StrJoin(times, ", "));
  if (profile.resident > 0) {
    absl::StrAppendFormat(&words, "; activations of %.0f tokens are on the compute node",
                          profile.resident);
  }
  return words;
}

}  // namespace lamina::policy
