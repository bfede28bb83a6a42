// SPDX-License-Identifier: Apache-2.0
#include "cost/kv_policies.h"

#include <algorithm>
#include <vector>

#include "absl/types/span.h"

namespace lamina::cost {
namespace {

constexpr double kBetter = 1 - 1e-9;

// Link and device are busy at the same time.
Estimate SharedSeconds(const FetchLayer& layer, double share) {
  const Estimate link =
      layer.weights_transfer + share * layer.activation_transfer + (1 - share) * layer.kv_transfer;
  return Max(link, layer.dense + layer.attention + share * layer.kv_generation);
}

// The smallest of a function of one share that is piecewise linear, with kinks at some of these. Of
// shares that are as good, but for rounding, the first: where tokens take as many bytes either way,
// recomputing them gains nothing and takes the device's time.
template <typename Seconds>
FetchTime Best(absl::Span<const double> shares, double share_max, Seconds seconds) {
  FetchTime best{.layer = seconds(0.0)};
  for (const double share : shares) {
    const double within = std::clamp(share, 0.0, share_max);
    if (const Estimate time = seconds(within); time.value < kBetter * best.layer.value) {
      best = {.layer = time, .share = within};
    }
  }
  return best;
}

}  // namespace

FetchTime FetchHeads(const FetchLayer& layer) {
  return {.layer = Max(layer.weights_transfer + layer.kv_transfer, layer.dense + layer.attention),
          .share = 1};
}

FetchTime FetchRecompute(const FetchLayer& layer, double share_max, ActivationsCome come) {
  const RecomputeProfile profile{.activation = layer.activation_transfer.value,
                                 .kv = layer.kv_transfer.value,
                                 .make = layer.kv_generation.value,
                                 .weights = layer.weights_transfer.value,
                                 .resident = layer.resident,
                                 .other_work = (layer.dense + layer.attention).value};
  const Provenance provenance =
      (layer.activation_transfer + layer.kv_transfer + layer.kv_generation +
       layer.weights_transfer + layer.dense + layer.attention)
          .provenance;
  std::vector<double> shares = RecomputeKinks(profile, /*tokens=*/1, come);
  shares.push_back(share_max);
  std::sort(shares.begin(), shares.end());
  return Best(shares, share_max, [&](double share) {
    return Estimate{RecomputeLayerSeconds(profile, /*tokens=*/1, share, come), provenance};
  });
}

FetchTime FetchHybrid(const FetchLayer& layer) {
  // Link and device take equally long at this share.
  const double lag = layer.weights_transfer.value + layer.kv_transfer.value - layer.dense.value -
                     layer.attention.value;
  const double slope =
      layer.kv_generation.value + layer.kv_transfer.value - layer.activation_transfer.value;
  const double crossing = slope > 0 ? lag / slope : 0;
  return Best({crossing, 1.0}, /*share_max=*/1,
              [&](double share) { return SharedSeconds(layer, share); });
}

FetchTime FetchSparse(const FetchLayer& layer, double ratio) {
  return {.layer = Max(layer.weights_transfer + ratio / 2 * layer.kv_transfer,
                       layer.dense + ratio * layer.attention),
          .share = ratio};
}

}  // namespace lamina::cost
