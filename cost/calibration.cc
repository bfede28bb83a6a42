// SPDX-License-Identifier: Apache-2.0
#include "cost/calibration.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "cost/model_shape.h"
#include "nlohmann/json.hpp"

namespace lamina::cost {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kPointsMax = 4096;      // The most points of one curve.
constexpr uint32_t kCountMax = 1 << 28;  // More than any size of a model.

// Reads numbers above 0, counts and texts; remembers the first that is missing or wrong.
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
  uint32_t Count(const Json& json, const char* key) {
    const double value = Number(json, key);
    if (value >= 1 && value <= kCountMax && value == std::floor(value)) {
      return static_cast<uint32_t>(value);
    }
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("\"", key, "\" should be a whole number in [1, ", kCountMax, "]"));
    }
    return 1;
  }
  // `otherwise` where the key is missing.
  uint32_t Count(const Json& json, const char* key, uint32_t otherwise) {
    return json.is_object() && json.contains(key) ? Count(json, key) : otherwise;
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

// The list of a curve's points, each read by `read`.
template <typename T, typename Read>
absl::StatusOr<std::vector<T>> ReadPoints(const Json& curve, Read read) {
  const Json points = curve.is_object() && curve.contains("points") ? curve["points"] : Json();
  if (!points.is_array() || points.empty() || points.size() > kPointsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"points\" should be a list of 1 to ", kPointsMax));
  }
  std::vector<T> all;
  Fields fields;
  for (const Json& point : points) {
    all.push_back(read(fields, point));
  }
  LAMINA_RETURN_IF_ERROR(fields.status());
  return all;
}

Point PointByRows(Fields& fields, const Json& point) {
  return {fields.Number(point, "rows"), fields.Number(point, "seconds")};
}

absl::StatusOr<SliceCurve> ReadSlice(const Json& json) {
  Fields fields;
  SliceCurve curve;
  curve.model = fields.Text(json, "model");
  ModelShape shape;
  shape.width = fields.Count(json, "width");
  shape.query_heads = fields.Count(json, "q_heads");
  shape.kv_heads = fields.Count(json, "kv_heads");
  shape.head_dim = fields.Count(json, "head_dim");
  shape.hidden = fields.Count(json, "hidden");
  shape.mlp_matrices = fields.Count(json, "mlp_matrices", shape.mlp_matrices);
  shape.experts = fields.Count(json, "experts", shape.experts);
  shape.experts_per_token = fields.Count(json, "experts_per_token", shape.experts_per_token);
  LAMINA_RETURN_IF_ERROR(fields.status());
  if (shape.experts_per_token > shape.experts) {
    return absl::InvalidArgumentError(absl::StrCat("\"experts_per_token\" is ",
                                                   shape.experts_per_token,
                                                   ", more than \"experts\", ", shape.experts));
  }
  curve.weights = shape.LayerWeights();
  curve.weights_read = shape.LayerWeightsRead(1);
  curve.row_flops = shape.LayerFlopsPerRow();
  LAMINA_ASSIGN_OR_RETURN(std::vector<Point> points, ReadPoints<Point>(json, PointByRows));
  curve.rows = FitLine(points);
  curve.times = TimeCurve(std::move(points));
  return curve;
}

absl::StatusOr<HeadCurve> ReadHead(const Json& json) {
  Fields fields;
  HeadCurve curve{.weights = fields.Number(json, "weights")};
  LAMINA_RETURN_IF_ERROR(fields.status());
  LAMINA_ASSIGN_OR_RETURN(std::vector<Point> points, ReadPoints<Point>(json, PointByRows));
  curve.times = TimeCurve(std::move(points));
  return curve;
}

absl::StatusOr<AttentionCurve> ReadAttention(const Json& json) {
  Fields fields;
  AttentionCurve curve;
  curve.kernel = fields.Text(json, "kernel");
  curve.head_bytes = 2 * 2 * fields.Number(json, "kv_heads") * fields.Number(json, "head_dim");
  curve.group = fields.Number(json, "group");
  LAMINA_RETURN_IF_ERROR(fields.status());
  const auto read = [&curve](Fields& of, const Json& point) {
    const bool has_rows = point.is_object() && point.contains("rows");
    return RowsPoint{.rows = has_rows ? of.Number(point, "rows") : 0,
                     .size = of.Number(point, "tokens") * curve.head_bytes,
                     .seconds = of.Number(point, "seconds")};
  };
  LAMINA_ASSIGN_OR_RETURN(const std::vector<RowsPoint> points, ReadPoints<RowsPoint>(json, read));
  curve.bytes = FitPlane(points);
  return curve;
}

absl::StatusOr<PromptAttentionCurve> ReadPromptAttention(const Json& json) {
  Fields fields;
  PromptAttentionCurve curve{.token_flops = 4 * fields.Number(json, "q_heads") *
                                            fields.Number(json, "head_dim")};
  LAMINA_RETURN_IF_ERROR(fields.status());
  const auto read = [&curve](Fields& of, const Json& point) {
    return Point{PromptAttentionFlops(curve.token_flops, of.Number(point, "tokens")),
                 of.Number(point, "seconds")};
  };
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Point> points, ReadPoints<Point>(json, read));
  curve.flops = FitLine(points);
  return curve;
}

absl::StatusOr<FittedLine> ReadExchange(const Json& json) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Point> points, ReadPoints<Point>(json, PointByRows));
  const auto other = std::find_if(points.begin(), points.end(), [&](const Point& point) {
    return point.size != points.front().size;
  });
  if (other != points.end()) {
    return FitLine(points);
  }
  // Lanes run alone with a row each only: nothing says that more rows wait for longer.
  double sum = 0;
  for (const Point& point : points) {
    sum += point.seconds;
  }
  const auto count = static_cast<double>(points.size());
  return FittedLine{.fixed = sum / count, .r2 = 1, .points = points.size()};
}

absl::StatusOr<TimeCurve> ReadBorder(const Json& json) {
  LAMINA_ASSIGN_OR_RETURN(std::vector<Point> points, ReadPoints<Point>(json, PointByRows));
  return TimeCurve(std::move(points));
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

}  // namespace

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
  status.Update(ReadCurves(json, "t_head", ReadHead, calibration.heads));
  status.Update(ReadCurves(json, "t_attn", ReadAttention, calibration.attentions));
  status.Update(
      ReadCurves(json, "t_prompt_attn", ReadPromptAttention, calibration.prompt_attentions));
  std::vector<FittedLine> exchanges;
  status.Update(ReadCurves(json, "t_exchange", ReadExchange, exchanges));
  std::vector<TimeCurve> borders;
  status.Update(ReadCurves(json, "t_border", ReadBorder, borders));
  if (!status.ok()) {
    return error(status.message());
  }
  if (!exchanges.empty()) {
    calibration.exchange = exchanges.front();
  }
  if (!borders.empty()) {
    calibration.border = borders.front();
  }
  return calibration;
}

}  // namespace lamina::cost
