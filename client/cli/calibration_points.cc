// SPDX-License-Identifier: Apache-2.0
#include "client/cli/calibration_points.h"

#include <algorithm>
#include <set>

namespace lamina::cli {
namespace {

// These parts of a compute node's time, besides waits, belong to no slice.
const std::set<std::string>& NotOfASlice() {
  static const std::set<std::string> parts = {"chunks", "head"};
  return parts;
}

double Part(const client::NodeStatus& node, const std::string& name) {
  for (const auto& [part, seconds] : node.parts) {
    if (part == name) {
      return seconds;
    }
  }
  return 0;
}

double SliceSeconds(const client::NodeStatus& node) {
  double seconds = 0;
  for (const auto& [part, value] : node.parts) {
    const bool waits = part.rfind("wait_", 0) == 0;
    seconds += waits || NotOfASlice().contains(part) ? 0 : value;
  }
  return seconds;
}

std::vector<cost::Point> PointsOf(const std::vector<CalibrationPoint>& from, bool by_tokens,
                                  double factor) {
  std::vector<cost::Point> points;
  for (const CalibrationPoint& point : from) {
    points.push_back({factor * (by_tokens ? point.tokens : point.rows), point.seconds});
  }
  return points;
}

Json FitToJson(const std::vector<cost::Point>& points) {
  const cost::FittedLine line = cost::FitLine(points);
  return {{"fixed_seconds", line.fixed}, {"slope_seconds", line.slope}, {"r2", line.r2}};
}

Json ShapeToJson(const cost::ModelShape& shape) {
  return {{"model", shape.name},        {"dtype", "bf16"},
          {"width", shape.width},       {"q_heads", shape.query_heads},
          {"kv_heads", shape.kv_heads}, {"head_dim", shape.head_dim},
          {"hidden", shape.hidden}};
}

}  // namespace

void AppendPoints(const client::ClusterStatus& before, const client::ClusterStatus& after,
                  double rows, double token_bytes, CalibrationPoints& points) {
  for (const client::NodeStatus& now : after.nodes) {
    const auto old =
        std::find_if(before.nodes.begin(), before.nodes.end(),
                     [&](const client::NodeStatus& node) { return node.name == now.name; });
    if (old == before.nodes.end() || now.units <= old->units) {
      continue;
    }
    const auto units = static_cast<double>(now.units - old->units);
    if (now.role == "memory") {
      const double seconds = (Part(now, "attend") - Part(*old, "attend")) / units;
      const double tokens =
          static_cast<double>(now.kv_bytes_read - old->kv_bytes_read) / units / token_bytes;
      if (seconds > 0 && tokens > 0) {
        points.attentions.push_back({.rows = rows, .tokens = tokens, .seconds = seconds});
      }
    } else if (const double seconds = (SliceSeconds(now) - SliceSeconds(*old)) / units;
               seconds > 0) {
      points.slices.push_back({.rows = rows, .seconds = seconds});
    }
  }
}

Json CalibrationToJson(const std::string& device, const std::string& date,
                       const cost::ModelShape& shape, const CalibrationPoints& points,
                       const client::ClusterStatus& status) {
  Json json = {{"format", 1}, {"device", device}, {"date", date}};
  if (!points.slices.empty()) {
    Json curve = ShapeToJson(shape);
    curve["points"] = Json::array();
    for (const CalibrationPoint& point : points.slices) {
      curve["points"].push_back({{"rows", point.rows}, {"seconds", point.seconds}});
    }
    curve["fit"] = FitToJson(PointsOf(points.slices, false, 1));
    json["t_slice"] = Json::array({curve});
  }
  if (!points.attentions.empty()) {
    Json curve = {{"kernel", "canonical"},
                  {"kv_heads", shape.kv_heads},
                  {"group", shape.query_heads / shape.kv_heads},
                  {"head_dim", shape.head_dim}};
    curve["points"] = Json::array();
    for (const CalibrationPoint& point : points.attentions) {
      curve["points"].push_back({{"rows", point.rows},
                                 {"context", point.tokens / std::max(1.0, point.rows)},
                                 {"tokens", point.tokens},
                                 {"seconds", point.seconds}});
    }
    curve["fit"] = FitToJson(PointsOf(points.attentions, true, 1));
    json["t_attn"] = Json::array({curve});
  }
  json["links"] = Json::array();
  for (const client::MeasuredLink& link : status.links) {
    json["links"].push_back({{"from", link.from},
                             {"to", link.to},
                             {"path", link.path},
                             {"latency_seconds", link.latency_seconds},
                             {"bytes_per_second", link.bytes_per_second}});
  }
  return json;
}

}  // namespace lamina::cli
