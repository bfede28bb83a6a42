// SPDX-License-Identifier: Apache-2.0
#include "control/epoch_shape.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::control {
namespace {

// The heads that are in both; {0, 0} if none is.
core::HeadRange Common(core::HeadRange a, core::HeadRange b) {
  const uint32_t first = std::max(a.first, b.first);
  const uint32_t end = std::min(a.first + a.count, b.first + b.count);
  return first < end ? core::HeadRange{.first = first, .count = end - first} : core::HeadRange{};
}

}  // namespace

core::WindowShape WindowShapeOf(const EpochConfig& config) {
  return {
      .compute_nodes = static_cast<uint32_t>(config.compute_nodes.size()),
      .memory_nodes = static_cast<uint32_t>(config.memory_nodes.size()),
      .lanes = config.lanes,
      .rows_max = config.rows_max,
      .kv_rows_max = config.chunk_tokens_max,
      .plan_ahead = config.plan_ahead,
      .spans_max = config.span_tokens == 0
                       ? 0
                       : (config.sequence_tokens_max + config.span_tokens - 1) / config.span_tokens,
      .context_chunk_rows = config.stages.empty() ? 0 : config.chunk_tokens_max,
      .shards = ShardsOf(config),
      .layers = config.layers};
}

absl::Status CheckRoles(const EpochConfig& config) {
  if (config.prefill_nodes < config.compute_nodes.size() && config.prefill_nodes < config.lanes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the configuration of epoch ", config.epoch, " has ", config.prefill_nodes,
                   " prefill nodes of ", config.compute_nodes.size(), " compute nodes, and ",
                   config.lanes, " lanes: none is left to decode"));
}

bool IsPrefillNode(const EpochConfig& config, const std::string& name) {
  const auto& nodes = config.compute_nodes;
  return std::find(nodes.end() - static_cast<std::ptrdiff_t>(config.prefill_nodes), nodes.end(),
                   name) != nodes.end();
}

core::Stage StageOf(const EpochConfig& config, uint32_t node) {
  return config.stages.empty()
             ? core::Stage{.replica = node, .layers = static_cast<uint32_t>(config.layers.size())}
             : config.stages[node];
}

absl::Status CheckStages(const EpochConfig& config) {
  if (config.stages.empty()) {
    return absl::OkStatus();
  }
  if (config.stages.size() != config.compute_nodes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the configuration of epoch ", config.epoch,
                                                   " has stages for ", config.stages.size(), " of ",
                                                   config.compute_nodes.size(), " compute nodes"));
  }
  LAMINA_RETURN_IF_ERROR(
      core::CheckStages(config.stages, static_cast<uint32_t>(config.layers.size())));
  for (const AttentionDescriptor& layer : config.layers) {
    LAMINA_RETURN_IF_ERROR(core::CheckShards(config.stages, layer.kv_heads));
  }
  return absl::OkStatus();
}

core::HeadRange HeadsOf(const EpochConfig& config, const AttentionDescriptor& layer,
                        uint32_t node) {
  return config.heads.empty() ? core::HeadRange{.count = layer.kv_heads} : config.heads[node];
}

core::HeadRange HeadsOf(const EpochConfig& config, const AttentionDescriptor& layer, uint32_t node,
                        uint32_t shard) {
  const core::HeadRange held = HeadsOf(config, layer, node);
  if (ShardsOf(config) == 1) {
    return held;
  }
  const auto stage =
      std::find_if(config.stages.begin(), config.stages.end(),
                   [&](const core::Stage& candidate) { return candidate.shard.index == shard; });
  return Common(held, {.first = stage->shard.first_head, .count = stage->shard.heads});
}

std::vector<uint32_t> ShardsThatAsk(const EpochConfig& config, uint32_t node) {
  std::vector<uint32_t> shards;
  for (uint32_t shard = 0; shard < ShardsOf(config); ++shard) {
    if (HeadsOf(config, config.layers.front(), node, shard).count > 0) {
      shards.push_back(shard);
    }
  }
  return shards;
}

std::vector<AttentionDescriptor> LayersOf(const EpochConfig& config, uint32_t node) {
  const std::vector<uint32_t> shards = ShardsThatAsk(config, node);
  std::vector<AttentionDescriptor> layers;
  for (const AttentionDescriptor& layer : config.layers) {
    for (const uint32_t shard : shards) {
      layers.push_back(core::PartOf(layer, HeadsOf(config, layer, node, shard)));
    }
  }
  return layers;
}

EpochConfig OfShard(EpochConfig config, const ShardPart& shard) {
  if (shard.count == 1) {
    return config;
  }
  const core::HeadRange own{.first = shard.first_head, .count = shard.heads};
  for (AttentionDescriptor& layer : config.layers) {
    layer = core::PartOf(layer, own);
  }
  for (core::HeadRange& heads : config.heads) {
    heads = Common(heads, own);
    heads.first -= heads.count == 0 ? heads.first : own.first;
  }
  return config;
}

absl::Status CheckShares(const EpochConfig& config) {
  const size_t nodes = config.memory_nodes.size();
  if (config.slots.size() != nodes) {
    return absl::InvalidArgumentError(absl::StrCat("the configuration of epoch ", config.epoch,
                                                   " gives slots to ", config.slots.size(), " of ",
                                                   nodes, " memory nodes"));
  }
  if (config.heads.empty()) {
    return absl::OkStatus();
  }
  uint32_t next = 0;
  bool fits = config.heads.size() == nodes;
  for (const core::HeadRange& range : config.heads) {
    fits = fits && range.first == next && range.count > 0;
    next += range.count;
  }
  for (const AttentionDescriptor& layer : config.layers) {
    fits = fits && layer.kv_heads == next;
  }
  return fits ? absl::OkStatus()
              : absl::InvalidArgumentError(absl::StrCat(
                    "the configuration of epoch ", config.epoch, " gives ", next, " KV heads to ",
                    config.heads.size(), " of ", nodes, " memory nodes; the layers have others"));
}

const AttentionDescriptor& WidestQueries(const std::vector<AttentionDescriptor>& layers) {
  return *std::max_element(layers.begin(), layers.end(), [](const auto& a, const auto& b) {
    return std::pair(a.q_width(), a.head_dim) < std::pair(b.q_width(), b.head_dim);
  });
}

uint32_t KvWidthMax(const std::vector<AttentionDescriptor>& layers) {
  uint32_t widest = 0;
  for (const AttentionDescriptor& layer : layers) {
    widest = std::max(widest, static_cast<uint32_t>(layer.kv_width()));
  }
  return widest;
}

uint32_t QkvWidthMax(const std::vector<AttentionDescriptor>& layers) {
  uint32_t widest = 0;
  for (const AttentionDescriptor& layer : layers) {
    widest = std::max(widest, layer.qkv_width());
  }
  return widest;
}

absl::StatusOr<uint32_t> OwnIndex(const std::vector<std::string>& names, const std::string& own,
                                  uint64_t epoch) {
  const auto found = std::find(names.begin(), names.end(), own);
  if (found == names.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", epoch, " does not name ", own));
  }
  return static_cast<uint32_t>(found - names.begin());
}

}  // namespace lamina::control
