// SPDX-License-Identifier: Apache-2.0
#include "cost/recompute_layer.h"

#include <algorithm>

namespace lamina::cost {
namespace {

// Windows of each lane and memory node, which take turns.
constexpr double kWindowsOfEach = 2;

// The number of tokens that close a gap of so many seconds, if each closes some of it.
double Crossing(double seconds, double closes) { return closes > 0 ? seconds / closes : 0; }

}  // namespace

ActivationsCome ActivationsComeOf(const RecomputeLane& lane) {
  const bool ahead = lane.weights == 0 && lane.kv_bytes <= lane.room;
  return lane.lanes > 1 || ahead ? ActivationsCome::kAhead : ActivationsCome::kWithinLayer;
}

double RoomForNextLayer(const RecomputeWindows& windows) {
  return windows.bytes / (kWindowsOfEach * windows.lanes * std::max(1.0, windows.memory_nodes)) / 2;
}

double RecomputeLayerSeconds(const RecomputeProfile& profile, double tokens, double recomputed,
                             ActivationsCome come) {
  // How many of the tokens that are made again have activations that come.
  const double coming = recomputed - std::min(recomputed, profile.resident);
  const double activations = profile.activation * coming;
  const double fetched = profile.kv * (tokens - recomputed);
  if (come == ActivationsCome::kAhead) {
    return std::max(profile.weights + activations + fetched,
                    profile.other_work + profile.make * recomputed);  // (d)
  }
  const double ahead = profile.other_work + profile.make * (recomputed - coming);
  return std::max(std::max(ahead, activations) + profile.make * coming,
                  activations + (profile.weights + fetched));  // (c)
}

std::vector<double> RecomputeKinks(const RecomputeProfile& profile, double tokens,
                                   ActivationsCome come) {
  const double link = profile.weights + profile.kv * tokens;  // All K and V come.
  const double lag = link - profile.other_work;
  const double closes = profile.kv + profile.make;
  std::vector<double> kinks = {
      profile.resident, Crossing(lag, closes),
      Crossing(lag - profile.activation * profile.resident, closes - profile.activation)};
  if (come == ActivationsCome::kWithinLayer) {
    kinks.push_back(Crossing(link + profile.make * profile.resident, closes));
  }
  return kinks;
}

}  // namespace lamina::cost
