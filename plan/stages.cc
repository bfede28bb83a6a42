// SPDX-License-Identifier: Apache-2.0
#include "plan/stages.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace lamina::plan {
namespace {

// Measurements of nodes that are alike differ by less.
constexpr double kAlike = 1.1;

// Shards split MLP columns in these steps: blocks of the packed weights.
constexpr uint32_t kColumnStep = 64;

// The cost of slices [first, end); the last stage's include the slice behind the last layer.
double CostOf(absl::Span<const double> slice_costs, uint32_t first, uint32_t end) {
  const size_t last = end + 1 == slice_costs.size() ? end + 1 : end;
  return std::accumulate(slice_costs.begin() + first,
                         slice_costs.begin() + static_cast<std::ptrdiff_t>(last), 0.0);
}

std::string DescribeShards(const ShardCosts& costs, absl::Span<const std::string> names,
                           absl::Span<const ShardPart> parts) {
  std::string words =
      absl::StrCat("of ", costs.heads, " KV heads and ", costs.columns, " MLP columns");
  for (size_t i = 0; i < parts.size(); ++i) {
    absl::StrAppend(&words, i == 0 ? " " : ", ", names[i], " ", parts[i].heads, " and ",
                    parts[i].columns);
  }
  return words + ", by cost";
}

}  // namespace

std::vector<AttentionDescriptor> LayersOfStage(absl::Span<const AttentionDescriptor> model,
                                               const Stage& stage) {
  const auto all = model.subspan(stage.first_layer, stage.layers);
  std::vector<AttentionDescriptor> layers(all.begin(), all.end());
  for (AttentionDescriptor& layer : layers) {
    if (stage.shard.count > 1) {
      layer = PartOf(layer, {.first = stage.shard.first_head, .count = stage.shard.heads});
    }
  }
  return layers;
}

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

std::vector<double> StageCosts(absl::Span<const double> slice_costs,
                               absl::Span<const uint32_t> layers) {
  std::vector<double> costs;
  uint32_t first = 0;
  for (const uint32_t count : layers) {
    costs.push_back(CostOf(slice_costs, first, first + count));
    first += count;
  }
  return costs;
}

absl::Status CheckStages(absl::Span<const Stage> nodes, uint32_t layers) {
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Stage>> planes;  // By replica and shard.
  for (const Stage& node : nodes) {
    planes[{node.replica, node.shard.index}].push_back(node);
  }
  uint32_t replicas = 0;
  for (auto& [key, stages] : planes) {
    const auto& [index, shard] = key;
    std::sort(stages.begin(), stages.end(),
              [](const Stage& a, const Stage& b) { return a.first_layer < b.first_layer; });
    uint64_t next = 0;
    replicas += index == replicas;
    bool fits = index + 1 == replicas;
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

absl::Status CheckShards(absl::Span<const Stage> nodes, uint32_t kv_heads) {
  if (nodes.empty() || nodes.front().shard.count == 1) {
    const bool none = std::all_of(nodes.begin(), nodes.end(), [](const Stage& node) {
      return node.shard.count == 1 && node.shard.index == 0;
    });
    return none ? absl::OkStatus()
                : absl::InvalidArgumentError("some compute nodes are shards and others are not");
  }
  const uint32_t count = nodes.front().shard.count;
  std::vector<ShardPart> parts(std::min<size_t>(count, nodes.size()));
  // By replica and first layer.
  std::map<std::pair<uint32_t, uint32_t>, std::set<uint32_t>> shards_of;
  bool fits = parts.size() == count;
  for (const Stage& node : nodes) {
    const ShardPart& shard = node.shard;
    fits = fits && shard.count == count && shard.index < count;
    if (!fits) {
      break;
    }
    ShardPart& known = parts[shard.index];
    fits = known == ShardPart() || known == shard;
    known = shard;
    shards_of[{node.replica, node.first_layer}].insert(shard.index);
  }
  for (const auto& [place, there] : shards_of) {
    fits = fits && there.size() == count;
  }
  uint64_t head = 0;
  uint64_t column = 0;
  for (const ShardPart& part : parts) {
    fits = fits && part.first_head == head && part.heads > 0 && part.first_column == column &&
           part.columns > 0;
    head += part.heads;
    column += part.columns;
  }
  return fits && head == kv_heads ? absl::OkStatus()
                                  : absl::InvalidArgumentError(absl::StrCat(
                                        "the ", count, " shards of the model do not have each of ",
                                        kv_heads, " KV heads once"));
}

std::vector<std::vector<Stage>> ByReplica(absl::Span<const Stage> nodes) {
  std::map<uint32_t, std::vector<Stage>> replicas;
  for (const Stage& node : nodes) {
    replicas[node.replica].push_back(node);
  }
  std::vector<std::vector<Stage>> all;
  for (auto& [replica, stages] : replicas) {
    all.push_back(std::move(stages));
  }
  return all;
}

uint32_t ShardsMax(absl::Span<const Stage> nodes) {
  uint32_t most = 1;
  for (const Stage& node : nodes) {
    most = std::max(most, node.shard.count);
  }
  return most;
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

absl::StatusOr<ShardSplit> SplitShards(const ShardCosts& costs,
                                       absl::Span<const std::string> names) {
  const auto count = static_cast<uint32_t>(names.size());
  if (count > costs.heads || count > costs.columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "compute: a replica of ", count,
        " shards wants a KV head and an MLP column for each; this model has ", costs.heads,
        " KV heads and ", costs.columns, " columns: take fewer shards, or stages"));
  }
  ShardSplit split{.parts = std::vector<ShardPart>(count)};
  for (uint32_t i = 0; i < count; ++i) {
    split.parts[i] = {.index = i,
                      .count = count,
                      .heads = costs.heads / count + (i < costs.heads % count ? 1 : 0)};
  }
  // Columns make up for what heads leave uneven: step after step to whoever has least then. In
  // blocks, as long as each shard may have several.
  uint32_t step = kColumnStep;
  while (step > 1 && (costs.columns % step != 0 || costs.columns / step < 8 * count)) {
    step /= 2;
  }
  for (uint32_t left = costs.columns / step; left > 0; --left) {
    const auto rank = [&](const ShardPart& part) {
      const bool is_due = part.columns == 0 && left <= count;  // Everybody gets one.
      return std::pair(!is_due, part.heads * costs.head + part.columns * costs.column);
    };
    const auto least =
        std::min_element(split.parts.begin(), split.parts.end(),
                         [&](const ShardPart& a, const ShardPart& b) { return rank(a) < rank(b); });
    least->columns += step;
  }
  for (uint32_t i = 1; i < count; ++i) {
    split.parts[i].first_head = split.parts[i - 1].first_head + split.parts[i - 1].heads;
    split.parts[i].first_column = split.parts[i - 1].first_column + split.parts[i - 1].columns;
  }
  split.why = DescribeShards(costs, names, split.parts);
  return split;
}

}  // namespace lamina::plan
