// SPDX-License-Identifier: Apache-2.0
#include "cost/calibration.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace lamina::cost {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kPointsMax = 4096;  // The most points of one curve.

// Reads numbers above 0 and texts; remembers the first that is missing or wrong.
class Fields {
 public:
  double Number(const Json& json, const char* key) {
    if (json.is_object() && json.contains(key) && json[key].is_number()) {
      const double value = json[key].get<double>();
      if (std::isfinite(value) && value > 0) {
        return value;
      }
    }
    if (status_.ok()) {
      status_ =
          absl::InvalidArgumentError(absl::StrCat("\"", key, "\" should be a number above 0"));
    }
    return 1;
  }
  std::string Text(const Json& json, const char* key) {
    if (json.is_object() && json.contains(key) && json[key].is_string()) {
      return json[key].get<std::string>();
    }
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("\"", key, "\" should be a text"));
    }
    return "";
  }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

absl::StatusOr<FittedLine> ReadPoints(const Json& curve, const char* size, double factor) {
  const Json points = curve.is_object() && curve.contains("points") ? curve["points"] : Json();
  if (!points.is_array() || points.empty() || points.size() > kPointsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"points\" should be a list of 1 to ", kPointsMax));
  }
  std::vector<Point> read;
  Fields fields;
  for (const Json& point : points) {
    read.push_back({fields.Number(point, size) * factor, fields.Number(point, "seconds")});
  }
  LAMINA_RETURN_IF_ERROR(fields.status());
  return FitLine(read);
}

absl::StatusOr<SliceCurve> ReadSlice(const Json& json) {
  Fields fields;
  SliceCurve curve;
  curve.model = fields.Text(json, "model");
  const double width = fields.Number(json, "width");
  const double heads = fields.Number(json, "q_heads");
  const double kv_heads = fields.Number(json, "kv_heads");
  const double head_dim = fields.Number(json, "head_dim");
  const double hidden = fields.Number(json, "hidden");
  LAMINA_RETURN_IF_ERROR(fields.status());
  curve.weights = width * (2 * (heads + kv_heads) * head_dim + 3 * hidden);
  LAMINA_ASSIGN_OR_RETURN(curve.rows, ReadPoints(json, "rows", 1));
  return curve;
}

absl::StatusOr<AttentionCurve> ReadAttention(const Json& json) {
  Fields fields;
  AttentionCurve curve;
  curve.kernel = fields.Text(json, "kernel");
  curve.head_bytes = 2 * 2 * fields.Number(json, "kv_heads") * fields.Number(json, "head_dim");
  LAMINA_RETURN_IF_ERROR(fields.status());
  LAMINA_ASSIGN_OR_RETURN(curve.bytes, ReadPoints(json, "tokens", curve.head_bytes));
  return curve;
}

template <typename Curve, typename Read>
absl::Status ReadCurves(const Json& json, const char* key, Read read, std::vector<Curve>& out) {
  if (!json.contains(key)) {
    return absl::OkStatus();  // The check did not run that step.
  }
  if (!json[key].is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(key, ": should be a list of curves"));
  }
  for (size_t i = 0; i < json[key].size(); ++i) {
    absl::StatusOr<Curve> curve = read(json[key][i]);
    if (!curve.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(key, ".", i, ": ", curve.status().message()));
    }
    out.push_back(*std::move(curve));
  }
  return absl::OkStatus();
}

double RSquared(const std::vector<Point>& points, const FittedLine& line) {
  double mean = 0;
  for (const Point& point : points) {
    mean += point.seconds / static_cast<double>(points.size());
  }
  double residual = 0;
  double variance = 0;
  for (const Point& point : points) {
    residual += std::pow(point.seconds - line.fixed - line.slope * point.size, 2);
    variance += std::pow(point.seconds - mean, 2);
  }
  return variance > 0 ? 1 - residual / variance : 1;
}

}  // namespace

FittedLine FitLine(const std::vector<Point>& points) {
  // Weights 1/seconds^2: the error of a point counts by its share of the point.
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
  line.r2 = RSquared(points, line);
  return line;
}

absl::StatusOr<Calibration> ParseCalibration(absl::string_view text, absl::string_view origin) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  const auto error = [&](absl::string_view message) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": ", message));
  };
  if (!json.is_object()) {
    return error("not a JSON object; deploy/gpu_check.sh writes such a file");
  }
  if (!json.contains("format") || json["format"] != kFormat) {
    return error(absl::StrCat("\"format\" is not ", kFormat, ", the only one that is known"));
  }
  Calibration calibration;
  Fields fields;
  calibration.device = fields.Text(json, "device");
  calibration.date = fields.Text(json, "date");
  absl::Status status = fields.status();
  status.Update(ReadCurves(json, "t_slice", ReadSlice, calibration.slices));
  status.Update(ReadCurves(json, "t_attn", ReadAttention, calibration.attentions));
  if (!status.ok()) {
    return error(status.message());
  }
  return calibration;
}

}  // namespace lamina::cost
