// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/placement.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace lamina::core {
namespace {

// A row costs dense arithmetic whatever its context; it is charged like so many tokens of context.
// Assumed; it only has to keep many short sequences from piling up with one long one.
constexpr uint64_t kContextTokensPerRow = 128;

double AttentionTime(uint64_t context_tokens, double bandwidth) {
  return static_cast<double>(context_tokens) / (bandwidth > 0 ? bandwidth : 1.0);
}

}  // namespace

uint64_t WorkOf(const LaneLoad& load) {
  return load.context_tokens + load.rows * kContextTokensPerRow;
}

std::optional<uint32_t> PickLane(const std::vector<LaneLoad>& lanes) {
  std::optional<uint32_t> best;
  uint64_t best_work = 0;
  uint64_t least_work = std::numeric_limits<uint64_t>::max();
  for (uint32_t i = 0; i < lanes.size(); ++i) {
    if (!lanes[i].has_room) {
      continue;
    }
    const uint64_t work = WorkOf(lanes[i]);
    least_work = std::min(least_work, work);
    if (lanes[i].open && (!best || work < best_work)) {
      best = i;
      best_work = work;
    }
  }
  // Its rows are what planning its step has just added to its work.
  if (best && best_work > least_work + lanes[*best].rows) {
    return std::nullopt;
  }
  return best;
}

std::optional<uint32_t> PickMemoryNode(const std::vector<NodeLoad>& nodes, uint32_t tokens) {
  // The longest time of all, and the longest of all but that node: what the others of a node take.
  double longest = 0;
  double second = 0;
  size_t longest_node = nodes.size();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const double time = AttentionTime(nodes[i].lane_context_tokens, nodes[i].bandwidth);
    if (longest_node == nodes.size() || time > longest) {
      second = longest;
      longest = time;
      longest_node = i;
    } else {
      second = std::max(second, time);
    }
  }
  std::optional<uint32_t> best;
  std::tuple<double, double, uint64_t> best_order;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].fits) {
      continue;
    }
    const double own = AttentionTime(nodes[i].lane_context_tokens + tokens, nodes[i].bandwidth);
    const std::tuple order{std::max(own, i == longest_node ? second : longest), own,
                           NodeLoad::kDropsNothing - nodes[i].drops_unused_for};
    if (!best || order < best_order) {
      best = i;
      best_order = order;
    }
  }
  return best;
}

namespace {

// A node that keeps K and V of a newcomer may take so much longer than the best one.
constexpr double kKeeperTimesMax = 2;
// One that keeps less than half of a newcomer may drop what was used so many times as lately.
constexpr uint64_t kUnusedTimesMax = 2;

class LeastAttentionTime final : public Placement {
 public:
  absl::string_view name() const override { return "least attention time"; }

  std::optional<uint32_t> LaneOfNewcomer(const std::vector<LaneLoad>& lanes,
                                         bool prefill) override {
    if (!prefill) {
      return PickLane(lanes);
    }
    std::optional<uint32_t> best;
    uint32_t most_left = 0;
    for (uint32_t i = 0; i < lanes.size(); ++i) {
      if (lanes[i].open && lanes[i].has_room && lanes[i].tokens_left > most_left) {
        best = i;
        most_left = lanes[i].tokens_left;
      }
    }
    return best;
  }

  std::optional<uint32_t> NodeOfNewcomer(const std::vector<NodeLoad>& nodes,
                                         uint32_t tokens) override {
    const std::optional<uint32_t> picked = PickMemoryNode(nodes, tokens);
    std::optional<uint32_t> keeper;
    for (uint32_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].fits && nodes[i].kept_tokens > (keeper ? nodes[*keeper].kept_tokens : 0)) {
        keeper = i;
      }
    }
    const auto attention = [&](uint32_t node) {
      return AttentionTime(nodes[node].lane_context_tokens + tokens, nodes[node].bandwidth);
    };
    if (!keeper || attention(*keeper) > kKeeperTimesMax * attention(*picked)) {
      return picked;
    }
    const bool keeps_most = 2 * uint64_t{nodes[*keeper].kept_tokens} >= tokens;
    const uint64_t elsewhere = nodes[*picked].drops_unused_for / kUnusedTimesMax;
    return keeps_most || nodes[*keeper].drops_unused_for >= elsewhere ? keeper : picked;
  }

  std::optional<uint32_t> NodeOfNextSpan(const std::vector<NodeLoad>& nodes,
                                         uint32_t tokens) override {
    return PickMemoryNode(nodes, tokens);
  }
};

}  // namespace

std::unique_ptr<Placement> MakeLeastAttentionTime() {
  return std::make_unique<LeastAttentionTime>();
}

}  // namespace lamina::core
