// SPDX-License-Identifier: Apache-2.0
//
// Calibration: what a device measured of itself (docs/formats/calibration.md), as fitted lines.
//
// Threading: pure.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::cost {

struct Point {
  double size = 0;
  double seconds = 0;
};

// seconds = fixed + slope * size, by least squares of relative errors, so that small sizes count as
// much as large ones. Neither is negative.
struct FittedLine {
  double fixed = 0;
  double slope = 0;
  double r2 = 0;  // Share of the seconds' variance that the line explains; 1 where all are equal.
  size_t points = 0;
};

// Requires: at least one point; sizes and seconds above 0. One size alone gives a line through the
// origin.
FittedLine FitLine(const std::vector<Point>& points);

// One slice in the middle of a model, over rows.
struct SliceCurve {
  std::string model;
  double weights = 0;  // Elements of its matrices.
  FittedLine rows;
};

// Decode attention of one layer, over the bytes of K and V.
struct AttentionCurve {
  std::string kernel;
  double head_bytes = 0;  // Bytes of one token's K and V in a layer.
  FittedLine bytes;
};

struct Calibration {
  std::string device;
  std::string date;
  std::vector<SliceCurve> slices;
  std::vector<AttentionCurve> attentions;
};

// Errors: kInvalidArgument  not such a file, another format, or a value that cannot be; names it.
absl::StatusOr<Calibration> ParseCalibration(absl::string_view text, absl::string_view origin);

}  // namespace lamina::cost
