// SPDX-License-Identifier: Apache-2.0
#include "memory_node/query_parts.h"

#include <algorithm>

#include "plan/epoch_shape.h"

namespace lamina::memory_node {

QueryParts::QueryParts(const NodeEpoch& epoch) {
  for (uint32_t lane = 0; lane < epoch.config.lanes; ++lane) {
    lanes_.push_back(Make(epoch, lane));
  }
  for (uint32_t node = 0; node < epoch.config.compute_nodes.size(); ++node) {
    for (uint32_t lane = 0; lane < epoch.config.lanes; ++lane) {
      part_of_.push_back(IndexOf(epoch, node, lane));
    }
  }
}

size_t QueryParts::count() const {
  size_t parts = 0;
  for (const std::vector<Part>& lane : lanes_) {
    parts += lane.size();
  }
  return parts;
}

// Those with heads here of one replica that runs the lane.
std::vector<Part> QueryParts::Make(const NodeEpoch& epoch, uint32_t lane) {
  const plan::EpochConfig& config = epoch.config;
  const AttentionDescriptor& any = config.layers.front();
  std::vector<Part> parts;
  for (uint32_t node = 0; node < config.compute_nodes.size(); ++node) {
    const uint32_t shard = plan::StageOf(config, node).shard.index;
    const HeadRange brought = plan::HeadsBetween(config, any, epoch.node, node);
    const bool known = std::any_of(parts.begin(), parts.end(),
                                   [&](const Part& part) { return part.shard == shard; });
    if (known || brought.count == 0 || !epoch.schedules.front().Runs(node, lane)) {
      continue;
    }
    const uint32_t held = plan::HeadsOf(config, any, epoch.node).first;
    parts.push_back(
        {.shard = shard, .heads = {.first = brought.first - held, .count = brought.count}});
    parts.back().reply.resize(epoch.layout.reply_window_bytes());
  }
  return parts;
}

uint32_t QueryParts::IndexOf(const NodeEpoch& epoch, uint32_t compute_node, uint32_t lane) const {
  const uint32_t shard = plan::StageOf(epoch.config, compute_node).shard.index;
  const std::vector<Part>& parts = lanes_[lane];
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const Part& part) { return part.shard == shard; });
  return found == parts.end() || !epoch.schedules.front().Runs(compute_node, lane)
             ? kNoPart
             : static_cast<uint32_t>(found - parts.begin());
}

}  // namespace lamina::memory_node
