// SPDX-License-Identifier: Apache-2.0
#include "common/remaining_time.h"

#include <cmath>

#include "absl/strings/str_format.h"

namespace lamina {
namespace {

constexpr double kSecondsMin = 0.5;  // Before that a pace says little.
constexpr double kInSecondsMax = 120;
constexpr double kInMinutesMax = 7200;

}  // namespace

std::string RemainingTime(double done, double all, double seconds) {
  if (!(done > 0) || !(done < all) || !(seconds >= kSecondsMin)) {
    return "";
  }
  const double left = seconds * (all - done) / done;
  if (left <= kInSecondsMax) {
    return absl::StrFormat("%.0f s left", std::ceil(left));
  }
  return left <= kInMinutesMax ? absl::StrFormat("%.0f min left", std::ceil(left / 60))
                               : absl::StrFormat("%.1f h left", left / 3600);
}

}  // namespace lamina
