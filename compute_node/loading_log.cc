// SPDX-License-Identifier: Apache-2.0
#include "compute_node/loading_log.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/remaining_time.h"

namespace lamina::compute_node {

std::optional<std::string> LoadingLog::Take(double share) {
  constexpr double kStep = 0.1;
  if (share <= 0) {
    began_ = clock_.Now();
    next_ = kStep;
    return std::nullopt;
  }
  if (share < next_) {
    return std::nullopt;
  }
  next_ = std::max(next_, share) + kStep;
  const std::string left = RemainingTime(share, 1, ToSeconds(clock_.Now() - began_));
  return absl::StrCat("loading weights ", std::lround(share * 100), "%", left.empty() ? "" : " ",
                      left);
}

}  // namespace lamina::compute_node
