// SPDX-License-Identifier: Apache-2.0
#include "cost/time_curve.h"

#include <algorithm>
#include <cstddef>

#include "common/check.h"

namespace lamina::cost {

TimeCurve::TimeCurve(std::vector<Point> points) {
  std::sort(points.begin(), points.end(),
            [](const Point& a, const Point& b) { return a.size < b.size; });
  for (size_t first = 0; first < points.size();) {
    Point mean{.size = points[first].size};
    size_t end = first;
    for (; end < points.size() && points[end].size == mean.size; ++end) {
      mean.seconds += points[end].seconds;
    }
    mean.seconds /= static_cast<double>(end - first);
    points_.push_back(mean);
    first = end;
  }
}

double TimeCurve::Least() const {
  LAMINA_CHECK(!points_.empty());
  double least = points_.front().seconds;
  for (const Point& point : points_) {
    least = std::min(least, point.seconds);
  }
  return least;
}

// Along a straight line the seconds of a unit only grow or only fall, so that the least are at a
// point, or where the last line goes on without end.
double TimeCurve::LeastOfUnit() const {
  LAMINA_CHECK(!points_.empty());
  double least = points_.front().seconds / points_.front().size;
  for (const Point& point : points_) {
    least = std::min(least, point.seconds / point.size);
  }
  if (points_.size() > 1) {
    const Point& a = points_[points_.size() - 2];
    const Point& b = points_.back();
    least = std::min(least, std::max(0.0, (b.seconds - a.seconds) / (b.size - a.size)));
  }
  return least;
}

double TimeCurve::At(double size) const {
  LAMINA_CHECK(!points_.empty());
  if (size <= points_.front().size) {
    return points_.front().seconds;
  }
  if (points_.size() == 1) {
    return points_.front().seconds * size / points_.front().size;
  }
  auto above = std::lower_bound(points_.begin(), points_.end(), size,
                                [](const Point& point, double at) { return point.size < at; });
  const bool beyond = above == points_.end();
  above = beyond ? points_.end() - 1 : above;
  const Point& a = *(above - 1);
  const Point& b = *above;
  const double slope = (b.seconds - a.seconds) / (b.size - a.size);
  return b.seconds + (beyond ? std::max(0.0, slope) : slope) * (size - b.size);
}

}  // namespace lamina::cost
