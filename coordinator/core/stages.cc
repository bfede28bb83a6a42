// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/stages.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace lamina::core {
namespace {

// Measurements of nodes that are alike differ by less.
constexpr double kAlike = 1.1;

// Speeds against their mean; all 1 if they are alike or one is not known.
std::vector<double> RelativeSpeeds(absl::Span<const StageNode> stages) {
  double sum = 0;
  double least = stages.front().speed;
  double most = 0;
  for (const StageNode& stage : stages) {
    sum += stage.speed;
    least = std::min(least, stage.speed);
    most = std::max(most, stage.speed);
  }
  if (!(least > 0) || most < kAlike * least) {
    return std::vector<double>(stages.size(), 1.0);
  }
  std::vector<double> speeds;
  for (const StageNode& stage : stages) {
    speeds.push_back(stage.speed * static_cast<double>(stages.size()) / sum);
  }
  return speeds;
}

// Of slices [first, end); the last stage's include the slice behind the last layer.
double CostOf(absl::Span<const double> slice_costs, uint32_t first, uint32_t end) {
  const size_t last = end + 1 == slice_costs.size() ? end + 1 : end;
  return std::accumulate(slice_costs.begin() + first,
                         slice_costs.begin() + static_cast<std::ptrdiff_t>(last), 0.0);
}

}  // namespace

absl::Status CheckStages(absl::Span<const Stage> nodes, uint32_t layers) {
  std::map<uint32_t, std::vector<Stage>> replicas;
  for (const Stage& node : nodes) {
    replicas[node.replica].push_back(node);
  }
  uint32_t replica = 0;
  for (auto& [index, stages] : replicas) {
    std::sort(stages.begin(), stages.end(),
              [](const Stage& a, const Stage& b) { return a.first_layer < b.first_layer; });
    uint64_t next = 0;
    bool fits = index == replica++;
    for (const Stage& stage : stages) {
      fits = fits && stage.first_layer == next && stage.layers > 0;
      next += stage.layers;
    }
    if (!fits || next != layers) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the stages of replica ", index, " do not have each of ", layers, " layers once"));
    }
  }
  return absl::OkStatus();
}

double BusiestShare(absl::Span<const double> slice_costs, absl::Span<const StageNode> stages,
                    absl::Span<const uint32_t> layers) {
  const std::vector<double> speeds = RelativeSpeeds(stages);
  double longest = 0;
  uint32_t first = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    longest = std::max(longest, CostOf(slice_costs, first, first + layers[i]) / speeds[i]);
    first += layers[i];
  }
  return longest / std::accumulate(slice_costs.begin(), slice_costs.end(), 0.0);
}

absl::StatusOr<StageSplit> SplitLayers(absl::Span<const double> slice_costs,
                                       absl::Span<const StageNode> stages) {
  const auto layers = static_cast<uint32_t>(slice_costs.size() - 1);
  const auto count = static_cast<uint32_t>(stages.size());
  if (count > layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a replica of ", count, " stages (", stages.front().name, " to ", stages.back().name,
        ") wants a model of as many layers; this one has ", layers));
  }
  const std::vector<double> speeds = RelativeSpeeds(stages);
  // best[s][l]: the longest of stages s and behind when they have the layers from l on; one layer
  // each at least. cut[s][l]: where stage s ends then.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(count, std::vector<double>(layers + 1, kNever));
  std::vector<std::vector<uint32_t>> cut(count, std::vector<uint32_t>(layers + 1, layers));
  for (uint32_t s = count; s-- > 0;) {
    for (uint32_t first = s; first < layers; ++first) {
      if (s + 1 == count) {
        best[s][first] = CostOf(slice_costs, first, layers) / speeds[s];
        continue;
      }
      for (uint32_t end = first + 1; end + (count - s - 1) <= layers; ++end) {
        const double longest =
            std::max(CostOf(slice_costs, first, end) / speeds[s], best[s + 1][end]);
        if (longest < best[s][first]) {
          best[s][first] = longest;
          cut[s][first] = end;
        }
      }
    }
  }
  StageSplit split;
  uint32_t first = 0;
  for (uint32_t s = 0; s < count; ++s) {
    split.layers.push_back(cut[s][first] - first);
    first = cut[s][first];
  }
  split.busiest_share = BusiestShare(slice_costs, stages, split.layers);
  const bool measured = std::all_of(stages.begin(), stages.end(),
                                    [](const StageNode& stage) { return stage.speed > 0; });
  split.why = measured ? "by cost and measured speed:" : "by cost";
  for (uint32_t s = 0; measured && s < count; ++s) {
    split.why += absl::StrFormat("%s %s %.2f", s == 0 ? "" : ",", stages[s].name, speeds[s]);
  }
  return split;
}

}  // namespace lamina::core
