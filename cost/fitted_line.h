// SPDX-License-Identifier: Apache-2.0
//
// Lines through measured times, by least squares of relative errors, so that small sizes count as
// much as large ones. No coefficient is negative.
//
// Threading: pure.

#pragma once

#include <cstddef>
#include <vector>

namespace lamina::cost {

struct Point {
  double size = 0;
  double seconds = 0;
};

// seconds = fixed + slope * size
struct FittedLine {
  double fixed = 0;
  double slope = 0;
  double r2 = 0;  // Share of the seconds' variance that the line explains; 1 where all are equal.
  size_t points = 0;
};

// Requires: at least one point; sizes and seconds above 0. One size alone gives a line through the
// origin.
FittedLine FitLine(const std::vector<Point>& points);

struct RowsPoint {
  double rows = 0;
  double size = 0;
  double seconds = 0;
};

// seconds = fixed + row * rows + slope * size
struct FittedPlane {
  double fixed = 0;
  double row = 0;
  double slope = 0;
  double r2 = 0;  // As of a line.
  size_t points = 0;
};

// Requires: at least one point; sizes and seconds above 0, rows not negative. Points that do not
// tell rows from sizes apart give a line over sizes alone.
FittedPlane FitPlane(const std::vector<RowsPoint>& points);

}  // namespace lamina::cost
