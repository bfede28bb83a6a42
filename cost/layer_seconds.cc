// SPDX-License-Identifier: Apache-2.0
#include "cost/layer_seconds.h"

#include <algorithm>

namespace lamina::cost {

double LayerSeconds(const LaneCosts& costs, const LaneWork& work, uint32_t lanes) {
  const double rows = static_cast<double>(work.rows) / lanes;
  const double context = static_cast<double>(work.context_tokens) / lanes;
  const double slice = costs.slice_fixed + costs.slice_per_row * rows;
  const double attention = costs.attention_fixed + costs.attention_per_token * context;
  return std::max(
      {lanes * slice * costs.busiest_share / costs.replicas, lanes * attention, slice + attention});
}

LaneCosts LaneCostsOf(const PoolTimes& pools) {
  LaneCosts costs{.replicas = pools.replicas, .busiest_share = pools.busiest_share};
  uint32_t slices = 0;
  for (const UnitTimes& node : pools.compute) {
    slices += node.fixed + node.slope > 0 ? 1 : 0;
    costs.slice_fixed += node.fixed;
    costs.slice_per_row += node.slope;
  }
  double speed = 0;
  double slowest = 0;
  for (const UnitTimes& node : pools.memory) {
    costs.attention_fixed = std::max(costs.attention_fixed, node.fixed);
    if (node.slope > 0) {
      speed += 1 / node.slope;
      slowest = std::max(slowest, node.slope);
    }
  }
  if (slices == 0 || (!pools.memory.empty() && costs.attention_fixed + slowest == 0)) {
    return {};
  }
  costs.slice_fixed /= slices;
  costs.slice_per_row /= slices;
  costs.attention_fixed *= pools.shards;
  costs.attention_per_token =
      pools.shards * (pools.heads_spread || speed == 0 ? slowest : 1 / speed);
  costs.measured = true;
  return costs;
}

double ExchangeSeconds(uint32_t chunks, double link, double attention, double message) {
  const double longer = std::max(link, attention);
  const double shorter = std::min(link, attention);
  return longer + shorter / chunks + (chunks - 1) * message;
}

}  // namespace lamina::cost
