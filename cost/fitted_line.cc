// SPDX-License-Identifier: Apache-2.0
#include "cost/fitted_line.h"

#include <array>
#include <cmath>
#include <utility>

namespace lamina::cost {
namespace {

constexpr int kTerms = 3;
using Terms = std::array<double, kTerms>;

template <typename Points, typename Predict>
double RSquared(const Points& points, Predict predict) {
  double mean = 0;
  for (const auto& point : points) {
    mean += point.seconds / static_cast<double>(points.size());
  }
  double residual = 0;
  double variance = 0;
  for (const auto& point : points) {
    residual += std::pow(point.seconds - predict(point), 2);
    variance += std::pow(point.seconds - mean, 2);
  }
  return variance > 0 ? 1 - residual / variance : 1;
}

// Weighted sums of products of the terms (1, rows, size), and of each with the seconds.
struct Normal {
  std::array<Terms, kTerms> a{};
  Terms b{};

  explicit Normal(const std::vector<RowsPoint>& points) {
    for (const RowsPoint& point : points) {
      const double weight = 1 / (point.seconds * point.seconds);
      const Terms terms = {1, point.rows, point.size};
      for (int i = 0; i < kTerms; ++i) {
        for (int j = 0; j < kTerms; ++j) {
          a[i][j] += weight * terms[i] * terms[j];
        }
        b[i] += weight * terms[i] * point.seconds;
      }
    }
  }
};

// Solves for the terms of `subset`, a bit each; the others are 0. False if they cannot be told
// apart.
bool Solve(Normal n, unsigned subset, Terms& x) {
  x = {};
  for (int i = 0; i < kTerms; ++i) {
    if ((subset >> i & 1) == 0) {
      n.a[i] = {};
      for (Terms& row : n.a) {
        row[i] = 0;
      }
      n.a[i][i] = 1;
      n.b[i] = 0;
    }
  }
  const Normal whole = n;
  for (int i = 0; i < kTerms; ++i) {  // Symmetric and positive: no pivots are looked for.
    if (n.a[i][i] <= 1e-9 * whole.a[i][i]) {
      return false;
    }
    for (int j = i + 1; j < kTerms; ++j) {
      const double factor = n.a[j][i] / n.a[i][i];
      for (int k = i; k < kTerms; ++k) {
        n.a[j][k] -= factor * n.a[i][k];
      }
      n.b[j] -= factor * n.b[i];
    }
  }
  for (int i = kTerms - 1; i >= 0; --i) {
    double rest = n.b[i];
    for (int k = i + 1; k < kTerms; ++k) {
      rest -= n.a[i][k] * x[k];
    }
    x[i] = rest / n.a[i][i];
  }
  return true;
}

double RelativeError(const std::vector<RowsPoint>& points, const Terms& x) {
  double error = 0;
  for (const RowsPoint& point : points) {
    error += std::pow((x[0] + x[1] * point.rows + x[2] * point.size) / point.seconds - 1, 2);
  }
  return error;
}

}  // namespace

FittedLine FitLine(const std::vector<Point>& points) {
  // With weights 1 / seconds^2 the error of a point counts by its share of the point.
  double one = 0;
  double size = 0;
  double square = 0;
  double seconds = 0;
  double product = 0;
  for (const Point& point : points) {
    const double weight = 1 / (point.seconds * point.seconds);
    one += weight;
    size += weight * point.size;
    square += weight * point.size * point.size;
    seconds += weight * point.seconds;
    product += weight * point.size * point.seconds;
  }
  FittedLine line{.points = points.size()};
  const double determinant = one * square - size * size;
  if (determinant > 1e-12 * one * square) {
    line.fixed = (seconds * square - product * size) / determinant;
    line.slope = (one * product - size * seconds) / determinant;
  }
  if (line.slope < 0) {
    line = {.fixed = seconds / one, .points = points.size()};
  } else if (line.fixed < 0 || line.slope == 0) {
    line = {.slope = product / square, .points = points.size()};
  }
  line.r2 =
      RSquared(points, [&](const Point& point) { return line.fixed + line.slope * point.size; });
  return line;
}

// Takes, of all subsets of terms, the one with the smallest error among those without a negative
// term. The size's own term is in each, since a plane that ignores it says nothing.
FittedPlane FitPlane(const std::vector<RowsPoint>& points) {
  constexpr unsigned kSize = 4;
  constexpr unsigned kSubsets = 8;
  const Normal normal(points);
  Terms best = {};
  double least = -1;
  for (unsigned subset = kSize; subset < kSubsets; ++subset) {
    Terms x;
    if (!Solve(normal, subset, x) || x[0] < 0 || x[1] < 0 || x[2] < 0) {
      continue;
    }
    const double error = RelativeError(points, x);
    if (least < 0 || error < least - 1e-12) {
      least = error;
      best = x;
    }
  }
  FittedPlane plane{.fixed = best[0], .row = best[1], .slope = best[2], .points = points.size()};
  plane.r2 = RSquared(points, [&](const RowsPoint& point) {
    return plane.fixed + plane.row * point.rows + plane.slope * point.size;
  });
  return plane;
}

}  // namespace lamina::cost
