// SPDX-License-Identifier: Apache-2.0
#include "plan/epoch_shape.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::plan {
namespace {

// What the nodes that decode run. Requires: stages.
absl::Span<const Stage> DecodeNodes(const EpochConfig& config) {
  return absl::MakeConstSpan(config.stages).first(config.stages.size() - config.prefill_nodes);
}

// Requires: fewer prefill nodes than compute nodes.
uint32_t PrefillReplicas(const EpochConfig& config) {
  return config.stages.size() != config.compute_nodes.size()
             ? config.prefill_nodes
             : static_cast<uint32_t>(
                   ByReplica(absl::MakeConstSpan(config.stages).subspan(DecodeNodes(config).size()))
                       .size());
}

}  // namespace

WindowShape WindowShapeOf(const EpochConfig& config) {
  return {
      .compute_nodes = static_cast<uint32_t>(config.compute_nodes.size()),
      .memory_nodes = static_cast<uint32_t>(config.memory_nodes.size()),
      .lanes = config.lanes,
      .rows_max = config.rows_max,
      .kv_rows_max = config.chunk_tokens_max,
      .plan_ahead = config.plan_ahead,
      .spans_max = config.partition != Partition::kTokenRange
                       ? 0
                       : (config.sequence_tokens_max + config.span_tokens - 1) / config.span_tokens,
      .context_chunk_rows = config.stages.empty() ? 0 : config.chunk_tokens_max,
      .shards = ShardsMax(config.stages),
      .layers = config.layers};
}

PipelineSchedule ScheduleOf(const EpochConfig& config, uint32_t shard) {
  const auto layers = static_cast<uint32_t>(config.layers.size());
  const uint32_t lanes = config.lanes - config.prefill_lanes;
  return config.stages.empty()
             ? PipelineSchedule(
                   config.mode,
                   static_cast<uint32_t>(config.compute_nodes.size()) - config.prefill_nodes,
                   layers, lanes)
             : PipelineSchedule(config.mode, config.stages, layers, shard,
                                {.lane = lanes, .lanes = PrefillLanesOf(config)});
}

absl::Status CheckRoles(const EpochConfig& config) {
  const bool decodes =
      config.prefill_nodes < config.compute_nodes.size() && config.prefill_lanes < config.lanes;
  const uint32_t replicas = decodes ? PrefillReplicas(config) : 0;
  const bool even = replicas == 0
                        ? config.prefill_lanes == 0
                        : config.prefill_lanes > 0 && config.prefill_lanes % replicas == 0;
  if (decodes && even && (!config.stages.empty() || config.prefill_lanes == replicas)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the configuration of epoch ", config.epoch, " has ", config.prefill_nodes,
                   " prefill nodes of ", config.compute_nodes.size(), " compute nodes, and ",
                   config.prefill_lanes, " prefill lanes of ", config.lanes,
                   decodes ? ": not as many for each replica" : ": none is left to decode"));
}

PrefillLanes PrefillLanesOf(const EpochConfig& config) {
  const uint32_t replicas = PrefillReplicas(config);
  return {.replicas = replicas, .each = replicas == 0 ? 1 : config.prefill_lanes / replicas};
}

bool IsPrefillNode(const EpochConfig& config, const std::string& name) {
  const auto& nodes = config.compute_nodes;
  return std::find(nodes.end() - static_cast<std::ptrdiff_t>(config.prefill_nodes), nodes.end(),
                   name) != nodes.end();
}

Stage StageOf(const EpochConfig& config, uint32_t node) {
  return config.stages.empty()
             ? Stage{.replica = node, .layers = static_cast<uint32_t>(config.layers.size())}
             : config.stages[node];
}

absl::Status CheckStages(const EpochConfig& config) {
  LAMINA_RETURN_IF_ERROR(CheckRoles(config));
  if (config.stages.empty()) {
    return absl::OkStatus();
  }
  if (config.stages.size() != config.compute_nodes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the configuration of epoch ", config.epoch,
                                                   " has stages for ", config.stages.size(), " of ",
                                                   config.compute_nodes.size(), " compute nodes"));
  }
  LAMINA_RETURN_IF_ERROR(CheckStages(config.stages, static_cast<uint32_t>(config.layers.size())));
  const auto decode = DecodeNodes(config);
  const auto prefill = absl::MakeConstSpan(config.stages).subspan(decode.size());
  for (const Stage& node : prefill) {
    const auto same = [&](const Stage& other) { return other.replica == node.replica; };
    if (std::any_of(decode.begin(), decode.end(), same)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the configuration of epoch ", config.epoch,
                       " has nodes for prompts and others in replica ", node.replica));
    }
  }
  for (const AttentionDescriptor& layer : config.layers) {
    LAMINA_RETURN_IF_ERROR(CheckShards(decode, layer.kv_heads));
    for (const std::vector<Stage>& replica : ByReplica(prefill)) {
      LAMINA_RETURN_IF_ERROR(CheckShards(replica, layer.kv_heads));
    }
  }
  return absl::OkStatus();
}

HeadRange HeadsOf(const EpochConfig& config, const AttentionDescriptor& layer, uint32_t node) {
  return config.partition == Partition::kHead ? config.heads[node]
                                              : HeadRange{.count = layer.kv_heads};
}

HeadRange HeadsBetween(const EpochConfig& config, const AttentionDescriptor& layer, uint32_t node,
                       uint32_t asker) {
  const HeadRange held = HeadsOf(config, layer, node);
  const ShardPart shard = StageOf(config, asker).shard;
  return shard.count == 1 ? held
                          : CommonHeads(held, {.first = shard.first_head, .count = shard.heads});
}

uint32_t WindowHeadsMin(const EpochConfig& config) {
  uint32_t fewest = UINT32_MAX;
  const auto decoders = static_cast<uint32_t>(config.compute_nodes.size()) - config.prefill_nodes;
  for (const AttentionDescriptor& layer : config.layers) {
    for (uint32_t node = 0; node < config.memory_nodes.size(); ++node) {
      for (uint32_t asker = 0; asker < decoders; ++asker) {
        const uint32_t heads = HeadsBetween(config, layer, node, asker).count;
        fewest = heads == 0 ? fewest : std::min(fewest, heads);
      }
    }
  }
  return fewest == UINT32_MAX ? 1 : fewest;
}

std::vector<AttentionDescriptor> LayersOf(const EpochConfig& config, uint32_t node) {
  std::vector<AttentionDescriptor> layers;
  for (const AttentionDescriptor& layer : config.layers) {
    layers.push_back(PartOf(layer, HeadsOf(config, layer, node)));
  }
  return layers;
}

EpochConfig OfShard(EpochConfig config, const ShardPart& shard) {
  if (shard.count == 1) {
    return config;
  }
  const HeadRange own{.first = shard.first_head, .count = shard.heads};
  for (AttentionDescriptor& layer : config.layers) {
    layer = PartOf(layer, own);
  }
  for (HeadRange& heads : config.heads) {
    heads = CommonHeads(heads, own);
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
  const bool by_head = config.partition == Partition::kHead;
  const bool by_span = config.partition == Partition::kTokenRange;
  if (config.partition > Partition::kTokenRange || config.heads.empty() == by_head ||
      (config.span_tokens == 0) == by_span) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the configuration of epoch ", config.epoch, " has ", config.heads.size(),
        " ranges of KV heads and spans of ", config.span_tokens, " tokens with partition ",
        static_cast<uint32_t>(config.partition), ": those of another one"));
  }
  if (!by_head) {
    return absl::OkStatus();
  }
  uint32_t next = 0;
  bool fits = config.heads.size() == nodes;
  for (const HeadRange& range : config.heads) {
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

absl::Status CheckPaths(const EpochConfig& config) {
  const AttentionPaths known = {AttentionPath::kRemote, AttentionPath::kLocal};
  if (config.attention_paths.empty() || (config.attention_paths.bits() & ~known.bits()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch, " has attention paths ",
                     config.attention_paths.bits(), "; this version knows ", known.bits()));
  }
  if (config.attention_paths.Has(AttentionPath::kLocal) !=
      (config.memory_nodes == config.compute_nodes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration of epoch ", config.epoch,
                     " does not have KV on the nodes that attend by its path"));
  }
  return absl::OkStatus();
}

absl::Status CheckEpoch(const EpochConfig& config) {
  LAMINA_RETURN_IF_ERROR(CheckStages(config));
  LAMINA_RETURN_IF_ERROR(CheckShares(config));
  return CheckPaths(config);
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

}  // namespace lamina::plan
