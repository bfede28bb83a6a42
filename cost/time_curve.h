// SPDX-License-Identifier: Apache-2.0
//
// TimeCurve: seconds over a size, as they were measured: straight lines between the points. A slice
// that reads quantised weights has a bend where arithmetic begins to count, which one line through
// all points would miss by a third.
//
// Threading: pure.

#pragma once

#include <vector>

#include "cost/fitted_line.h"

namespace lamina::cost {

class TimeCurve {
 public:
  TimeCurve() = default;
  // Points of one size become their mean. Requires: sizes and seconds above 0.
  explicit TimeCurve(std::vector<Point> points);

  bool empty() const { return points_.empty(); }

  // Below the smallest point its seconds, since small batches read the same weights. Above the
  // largest the line goes on as between the last two, or from one point in proportion.
  // Requires: not empty().
  double At(double size) const;

  // No size takes less, and none less for each of its units. Require: not empty().
  double Least() const;
  double LeastOfUnit() const;

 private:
  std::vector<Point> points_;  // By size, each size once.
};

}  // namespace lamina::cost
