// SPDX-License-Identifier: Apache-2.0
#include "cost/token_layer.h"

#include <algorithm>

namespace lamina::cost {
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

}  // namespace lamina::cost
