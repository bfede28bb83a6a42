// SPDX-License-Identifier: Apache-2.0
#include "client/cli/calibration_points.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lamina::cli {
namespace {

// With so many times attention's seconds in slices of other lanes, a lane does not wait for it.
constexpr double kHidingSlices = 2;

// Prompts that ran in one chunk each have about one step each; in more, at least two.
constexpr double kStepsOfOneChunk = 1.5;

// These parts of a compute node's time, besides waits, belong to no slice.
const std::set<std::string>& NotOfASlice() {
  static const std::set<std::string> parts = {"chunks", "head", "store", "attend", "reply"};
  return parts;
}

Json PointsToJson(const std::vector<CalibrationPoint>& points, const char* size) {
  Json json = Json::array();
  for (const CalibrationPoint& point : points) {
    const bool by_rows = std::string(size) == "rows";
    json.push_back({{size, by_rows ? point.rows : point.tokens}, {"seconds", point.seconds}});
  }
  return json;
}

double Rows(const CalibrationPoint& point) { return point.rows; }
double Tokens(const CalibrationPoint& point) { return point.tokens; }
double SquaredTokens(const CalibrationPoint& point) { return point.tokens * point.tokens; }

using SizeOf = double (*)(const CalibrationPoint& point);

// Points of one size say nothing of a line.
bool HaveSeveralSizes(const std::vector<CalibrationPoint>& points, SizeOf size) {
  return std::any_of(points.begin(), points.end(), [&](const CalibrationPoint& point) {
    return size(point) != size(points.front());
  });
}

// Adds `fit`, if there is one.
void AddLine(const std::vector<CalibrationPoint>& from, SizeOf size, Json& curve) {
  if (!HaveSeveralSizes(from, size)) {
    return;
  }
  std::vector<cost::Point> points;
  for (const CalibrationPoint& point : from) {
    points.push_back({size(point), point.seconds});
  }
  const cost::FittedLine line = cost::FitLine(points);
  curve["fit"] = {{"fixed_seconds", line.fixed}, {"slope_seconds", line.slope}, {"r2", line.r2}};
}

void AddPlane(const std::vector<CalibrationPoint>& from, Json& curve) {
  if (!HaveSeveralSizes(from, Tokens)) {
    return;
  }
  std::vector<cost::RowsPoint> points;
  for (const CalibrationPoint& point : from) {
    points.push_back({.rows = point.rows, .size = point.tokens, .seconds = point.seconds});
  }
  const cost::FittedPlane plane = cost::FitPlane(points);
  curve["fit"] = {{"fixed_seconds", plane.fixed},
                  {"row_seconds", plane.row},
                  {"slope_seconds", plane.slope},
                  {"r2", plane.r2}};
}

// The first word of what the status says of attention: "pairs: every node is fast at ...".
std::string KernelOf(const client::ClusterStatus& status) {
  return status.attention.substr(0, status.attention.find_first_of(":, "));
}

Json ShapeToJson(const cost::ModelShape& shape) {
  return {{"model", shape.name},        {"dtype", "bf16"},
          {"width", shape.width},       {"q_heads", shape.query_heads},
          {"kv_heads", shape.kv_heads}, {"head_dim", shape.head_dim},
          {"hidden", shape.hidden},     {"mlp_matrices", shape.mlp_matrices},
          {"experts", shape.experts},   {"experts_per_token", shape.experts_per_token}};
}

void AppendMediansOf(std::vector<CalibrationPoint> CalibrationPoints::*list,
                     const std::vector<CalibrationPoints>& windows, CalibrationPoints& points) {
  const size_t count = (windows.front().*list).size();
  const bool alike = std::all_of(windows.begin(), windows.end(), [&](const auto& window) {
    return (window.*list).size() == count;
  });
  if (!alike) {
    for (const CalibrationPoints& window : windows) {
      (points.*list).insert((points.*list).end(), (window.*list).begin(), (window.*list).end());
    }
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    std::vector<CalibrationPoint> same;
    for (const CalibrationPoints& window : windows) {
      same.push_back((window.*list)[i]);
    }
    std::sort(same.begin(), same.end(),
              [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    (points.*list).push_back(same[same.size() / 2]);
  }
}

}  // namespace

void AppendMedians(const std::vector<CalibrationPoints>& windows, CalibrationPoints& points) {
  using Points = CalibrationPoints;
  for (const auto list : {&Points::slices, &Points::heads, &Points::attentions,
                          &Points::prompt_attentions, &Points::exchanges, &Points::borders}) {
    AppendMediansOf(list, windows, points);
  }
}

// A node's counters between the two statuses.
struct CalibrationWindow::Change {
  bool memory = false;
  std::string runs;  // The replica and the layers that it runs: those of shards are the same.
  double units = 0;
  double kv_bytes = 0;
  std::map<std::string, double> parts;

  double Part(const std::string& name) const {
    const auto part = parts.find(name);
    return part == parts.end() ? 0 : part->second;
  }
  double SliceSeconds() const {
    double seconds = 0;
    for (const auto& [part, value] : parts) {
      const bool waits = part.rfind("wait_", 0) == 0;
      seconds += waits || NotOfASlice().contains(part) ? 0 : value;
    }
    return seconds;
  }
  // A step of n layers has n + 1 slices: what comes before the first attention and what comes
  // behind the last one are one layer's together.
  double SecondsOfALayer(double layers) const {
    return SliceSeconds() / units * (layers + 1) / layers;
  }
};

std::vector<CalibrationWindow::Change> CalibrationWindow::Changes() const {
  std::vector<Change> changes;
  for (const client::NodeStatus& now : after_.nodes) {
    const auto old =
        std::find_if(before_.nodes.begin(), before_.nodes.end(),
                     [&](const client::NodeStatus& node) { return node.name == now.name; });
    if (old == before_.nodes.end() || now.units <= old->units) {
      continue;
    }
    const std::string& replica = now.replica.empty() ? now.name : now.replica;
    Change change{.memory = now.role == "memory",
                  .runs = absl::StrCat(replica, " ", now.layers.substr(0, now.layers.find(','))),
                  .units = static_cast<double>(now.units - old->units),
                  .kv_bytes = static_cast<double>(now.kv_bytes_read - old->kv_bytes_read)};
    for (const auto& [part, seconds] : now.parts) {
      change.parts[part] += seconds;
    }
    for (const auto& [part, seconds] : old->parts) {
      change.parts[part] -= seconds;
    }
    changes.push_back(std::move(change));
  }
  return changes;
}

void CalibrationWindow::AppendDecode(double rows, double lanes, CalibrationPoints& points) const {
  const std::vector<Change> changes = Changes();
  const Change* compute = nullptr;
  int compute_nodes = 0;
  double attention = 0;
  for (const Change& change : changes) {
    // What the node is busy with for a unit, and the next one waits for.
    const double attended =
        (change.Part("store") + change.Part("attend") + change.Part("reply")) / change.units;
    const double tokens = change.kv_bytes / change.units / shape_.KvBytesPerTokenLayer();
    if (attended > 0 && tokens > 0) {
      points.attentions.push_back({.rows = rows, .tokens = tokens, .seconds = attended});
      attention = std::max(attention, attended);
    }
    if (!change.memory) {
      compute = &change;
      ++compute_nodes;
      points.slices.push_back({.rows = rows, .seconds = change.SecondsOfALayer(shape_.layers)});
    }
  }
  if (compute_nodes != 1) {
    return;
  }
  const double steps = compute->units / (shape_.layers + 1.0);
  if (const double head = compute->Part("head") / steps; head > 0) {
    points.heads.push_back({.rows = rows, .seconds = head});
  }
  const double wait = compute->Part("wait_attention") / steps;
  const double exchange = wait / shape_.layers - attention;
  if (lanes == 1 && wait > 0 && exchange > 0) {
    points.exchanges.push_back({.rows = rows, .seconds = exchange});
  }
  const double others = (lanes - 1) * compute->SliceSeconds() / compute->units;
  if (wait > 0 && attention > 0 && others > kHidingSlices * attention) {
    points.borders.push_back({.rows = rows, .seconds = wait});
  }
}

bool CalibrationWindow::RanInOneChunk(const std::vector<Change>& changes, double prompts) const {
  std::map<std::string, double> units;
  for (const Change& change : changes) {
    if (!change.memory) {
      units[change.runs] = std::max(units[change.runs], change.units);
    }
  }
  double all = 0;
  for (const auto& [runs, of_these] : units) {
    all += of_these;
  }
  return all <= kStepsOfOneChunk * prompts * (shape_.layers + 1.0);
}

bool CalibrationWindow::AppendPrompts(double tokens, double prompts,
                                      CalibrationPoints& points) const {
  const std::vector<Change> changes = Changes();
  const bool one_chunk = RanInOneChunk(changes, prompts);
  double attention = 0;
  for (const Change& change : changes) {
    if (change.memory) {
      continue;
    }
    attention += change.Part("chunks") + change.Part("store") + change.Part("attend");
    if (one_chunk) {
      points.slices.push_back({.rows = tokens, .seconds = change.SecondsOfALayer(shape_.layers)});
    }
  }
  if (attention > 0) {
    points.prompt_attentions.push_back(
        {.tokens = tokens, .seconds = attention / (prompts * shape_.layers)});
  }
  return one_chunk;
}

Json CalibrationToJson(const std::string& device, const std::string& date,
                       const cost::ModelShape& shape, const CalibrationPoints& points,
                       const client::ClusterStatus& status) {
  Json json = {{"format", 1}, {"device", device}, {"date", date}};
  if (!points.slices.empty()) {
    Json curve = ShapeToJson(shape);
    curve["points"] = PointsToJson(points.slices, "rows");
    AddLine(points.slices, Rows, curve);
    json["t_slice"] = Json::array({curve});
  }
  if (!points.heads.empty()) {
    Json curve = {{"model", shape.name},
                  {"weights", shape.HeadWeights()},
                  {"points", PointsToJson(points.heads, "rows")}};
    AddLine(points.heads, Rows, curve);
    json["t_head"] = Json::array({curve});
  }
  if (!points.attentions.empty()) {
    Json curve = {{"kernel", KernelOf(status)},
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
    AddPlane(points.attentions, curve);
    json["t_attn"] = Json::array({curve});
  }
  if (!points.prompt_attentions.empty()) {
    Json curve = {{"q_heads", shape.query_heads},
                  {"head_dim", shape.head_dim},
                  {"points", PointsToJson(points.prompt_attentions, "tokens")}};
    AddLine(points.prompt_attentions, SquaredTokens, curve);
    json["t_prompt_attn"] = Json::array({curve});
  }
  if (!points.exchanges.empty()) {
    Json curve = {{"points", PointsToJson(points.exchanges, "rows")}};
    AddLine(points.exchanges, Rows, curve);
    json["t_exchange"] = Json::array({curve});
  }
  if (!points.borders.empty()) {
    Json curve = {{"points", PointsToJson(points.borders, "rows")}};
    AddLine(points.borders, Rows, curve);
    json["t_border"] = Json::array({curve});
  }
  json["reads"] = Json::array();
  for (const client::NodeStatus& node : status.nodes) {
    if (node.bandwidth_bytes_per_second > 0) {
      json["reads"].push_back(
          {{"node", node.name}, {"bytes_per_second", node.bandwidth_bytes_per_second}});
    }
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
