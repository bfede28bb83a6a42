// SPDX-License-Identifier: Apache-2.0
#include "policy/token_recompute.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace lamina::policy {
namespace {

double LinkSeconds(const TokenProfile& profile, const TokenLoad& load, uint32_t made) {
  return profile.weights + profile.kv * load.rows * (load.context - made);
}

double DeviceSeconds(const TokenProfile& profile, const TokenLoad& load, uint32_t made) {
  const auto r = static_cast<double>(made);
  return profile.other + load.rows * (profile.make * r + profile.attend * r * (r + 1) / 2);
}

}  // namespace

double TokenLayerSeconds(const TokenProfile& profile, const TokenLoad& load, uint32_t made) {
  return std::max(LinkSeconds(profile, load, made), DeviceSeconds(profile, load, made));
}

// Next to the first tile with which the device takes no less than the link.
TokenSplit BestTokenSplit(const TokenProfile& profile, const TokenLoad& load) {
  uint32_t first = 0;
  uint32_t end = load.context / load.tile;  // In tiles.
  while (first < end) {
    const uint32_t tiles = first + (end - first) / 2;
    const uint32_t made = tiles * load.tile;
    if (DeviceSeconds(profile, load, made) >= LinkSeconds(profile, load, made)) {
      end = tiles;
    } else {
      first = tiles + 1;
    }
  }
  const uint32_t crossing = first * load.tile;
  const uint32_t before = first == 0 ? 0 : crossing - load.tile;
  TokenSplit best{.made = before, .seconds = TokenLayerSeconds(profile, load, before)};
  if (const double seconds = TokenLayerSeconds(profile, load, crossing); seconds < best.seconds) {
    best = {.made = crossing, .seconds = seconds};
  }
  return best;
}

std::string DescribeTokens(const TokenProfile& profile, double share) {
  constexpr double kMicro = 1e6;
  const std::string weights =
      profile.weights > 0
          ? absl::StrFormat("the layer's weights %.3g us there, ", profile.weights * kMicro)
          : "";
  const std::string times = absl::StrFormat(
      "K and V of one take %.3g us on the link, %smaking them %.3g us, and all else of a layer on "
      "the device %.3g us",
      profile.kv * kMicro, weights, profile.make * kMicro, profile.other * kMicro);
  return share > 0
             ? absl::StrFormat("%.0f%% of tokens made from their numbers: %s", share * 100, times)
             : absl::StrFormat("no tokens made from their numbers: %s", times);
}

}  // namespace lamina::policy
