// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/lane_count.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"

namespace lamina::core {
namespace {

// A change moves rows between lanes, each of which sits out a step or two for it.
constexpr double kWorthAChange = 0.95;

std::vector<uint32_t> Candidates(const LaneCountOptions& options, uint32_t rows) {
  const uint32_t rows_max = std::max(1u, options.rows_max);
  const uint32_t least =
      std::min(options.lanes_max, std::max(1u, (rows + rows_max - 1) / rows_max));
  std::vector<uint32_t> candidates;
  for (uint32_t lanes = 1; lanes <= options.lanes_max; ++lanes) {
    if (lanes >= least && (lanes <= rows || lanes == least)) {
      candidates.push_back(lanes);
    }
  }
  if (candidates.empty()) {
    candidates.push_back(options.lanes_max);
  }
  return candidates;
}

}  // namespace

LaneCount ChooseLanes(const LaneCountOptions& options, const cost::LaneCosts& costs,
                      const cost::LaneWork& work, uint32_t current) {
  if (!options.automatic) {
    return {options.lanes_max, absl::StrFormat("%d, %s", options.lanes_max, options.fixed_why)};
  }
  const std::vector<uint32_t> candidates = Candidates(options, work.rows);
  const auto of = [&](uint32_t lanes) {
    return absl::StrFormat("%d of %d lanes: %d row%s", lanes, options.lanes_max, work.rows,
                           work.rows == 1 ? "" : "s");
  };
  if (!costs.measured) {
    const uint32_t lanes =
        candidates.back() == options.lanes_max ? options.lanes_max : candidates.front();
    return {lanes, of(lanes) + ", times not measured yet"};
  }
  uint32_t best = candidates.front();
  for (const uint32_t lanes : candidates) {
    if (cost::LayerSeconds(costs, work, lanes) < cost::LayerSeconds(costs, work, best)) {
      best = lanes;
    }
  }
  const bool may_stay =
      std::find(candidates.begin(), candidates.end(), current) != candidates.end();
  if (may_stay && cost::LayerSeconds(costs, work, best) >
                      kWorthAChange * cost::LayerSeconds(costs, work, current)) {
    best = current;
  }
  std::string why = of(best) + absl::StrFormat(", a layer takes %.2f ms",
                                               cost::LayerSeconds(costs, work, best) * 1e3);
  const uint32_t other = best == 1 ? candidates.back() : 1;
  if (other != best) {
    why +=
        absl::StrFormat(", with %d %.2f ms", other, cost::LayerSeconds(costs, work, other) * 1e3);
  }
  return {best, why};
}

}  // namespace lamina::core
