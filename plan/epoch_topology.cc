// SPDX-License-Identifier: Apache-2.0
#include "plan/epoch_topology.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "plan/fetch_pieces.h"
#include "plan/slot_kinds.h"
#include "plan/streaming_tokens.h"
#include "plan/token_sets.h"

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

// Each replica holds whole sequences, in the same slots on all of its nodes.
absl::Status CheckLocal(const EpochConfig& config) {
  if (!config.attention_paths.Has(AttentionPath::kLocal)) {
    return absl::OkStatus();
  }
  bool fits = config.partition == Partition::kRequest && config.prefill_nodes == 0;
  for (size_t i = 1; i < config.stages.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      fits = fits && (config.stages[i].replica != config.stages[j].replica ||
                      config.slots[i] == config.slots[j]);
    }
  }
  return fits ? absl::OkStatus()
              : absl::InvalidArgumentError(absl::StrCat(
                    "the configuration of epoch ", config.epoch,
                    " has KV on compute nodes with a partition, with nodes for prompts, or with "
                    "unlike slots in one replica"));
}

absl::Status CheckPaths(const EpochConfig& config) {
  const AttentionPaths known = {AttentionPath::kRemote,     AttentionPath::kLocal,
                                AttentionPath::kFetch,      AttentionPath::kSparse,
                                AttentionPath::kStreaming,  AttentionPath::kRecompute,
                                AttentionPath::kRemoteInt8, AttentionPath::kHybrid};
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
  LAMINA_RETURN_IF_ERROR(CheckLocal(config));
  LAMINA_RETURN_IF_ERROR(CheckSparse(config));
  LAMINA_RETURN_IF_ERROR(CheckStreaming(config));
  return CheckFetch(config);
}

// Slots of two forms are served where rows of both attend at memory nodes, which hold whole
// sequences or heads of these, on processors.
absl::Status CheckForms(const EpochConfig& config) {
  const AttentionPaths both = {AttentionPath::kRemote, AttentionPath::kRemoteInt8};
  const bool has_int8 = config.attention_paths.Has(AttentionPath::kRemoteInt8);
  const bool served =
      !has_int8 || (config.attention_paths == both && config.int8_tails > 0 &&
                    config.attention == ClusterAttention() &&
                    config.partition != Partition::kTokenRange && config.prefill_nodes == 0 &&
                    config.stages.empty() && !config.compute_waits && !config.memory_waits);
  if (served && config.int8_slots.size() == (has_int8 ? config.memory_nodes.size() : 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the configuration of epoch ", config.epoch, " has INT8 slots of ",
                   config.int8_slots.size(), " memory nodes next to those of bf16, with paths ",
                   config.attention_paths.bits(), ", which this version does not serve"));
}

// Path hybrid has all slots, or next to other paths slots of its own. There sequences are not cut,
// and no slot has room for an activation in addition to K and V.
absl::Status CheckHybrid(const EpochConfig& config) {
  const AttentionPaths& paths = config.attention_paths;
  const bool has = paths.Has(AttentionPath::kHybrid);
  const bool apart = has && paths != AttentionPaths{AttentionPath::kHybrid};
  const bool served = apart
                          ? !paths.Has(AttentionPath::kRecompute) &&
                                config.partition != Partition::kTokenRange && config.int8_tails == 0
                          : has || config.activation_share == 0;
  if (served && config.hybrid_slots.size() == (apart ? config.memory_nodes.size() : 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the configuration of epoch ", config.epoch, " has slots of path hybrid on ",
      config.hybrid_slots.size(), " memory nodes next to those of others, of which ",
      config.activation_share, " of ", SlotKinds::kUnit, " hold activations, with paths ",
      paths.bits(), ", which this version does not serve"));
}

// Sequences in INT8 are cut between blocks, and their rows attend where the spans lie.
bool ServesSpansOfInt8(const EpochConfig& config) {
  const AttentionPaths remote = {AttentionPath::kRemote};
  return config.partition != Partition::kTokenRange ||
         (config.attention_paths == remote && config.span_tokens % kInt8BlockTokens == 0);
}

// INT8 is served on processors.
absl::Status CheckInt8(const EpochConfig& config) {
  const AttentionPaths served = {AttentionPath::kRemote, AttentionPath::kLocal,
                                 AttentionPath::kFetch, AttentionPath::kSparse,
                                 AttentionPath::kRecompute};
  const bool canonical = config.attention == ClusterAttention();
  LAMINA_RETURN_IF_ERROR(CheckForms(config));
  if (config.int8_tails == 0 || config.attention_paths.Has(AttentionPath::kRemoteInt8) ||
      ((config.attention_paths.bits() & ~served.bits()) == 0 && canonical &&
       ServesSpansOfInt8(config) && config.prefill_nodes == 0 && !config.compute_waits &&
       !config.memory_waits)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the configuration of epoch ", config.epoch,
                   " has INT8 KV with a path, a partition, prefill nodes or an arithmetic that "
                   "this version does not serve with it"));
}

// The first `count` indices.
std::vector<uint32_t> Indices(uint32_t count) {
  std::vector<uint32_t> indices(count);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

}  // namespace

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

uint32_t EpochView::shards() const {
  return form() == ReplicaForm::kWhole ? 1 : config_->stages.front().shard.count;
}

PrefillLanes EpochView::prefill_lanes() const {
  const uint32_t replicas = PrefillReplicas(*config_);
  return {.replicas = replicas, .each = replicas == 0 ? 1 : config_->prefill_lanes / replicas};
}

PipelineSchedule EpochView::Schedule(uint32_t shard) const {
  const auto layers = static_cast<uint32_t>(config_->layers.size());
  const uint32_t lanes = config_->lanes - config_->prefill_lanes;
  const PipelineMode mode =
      attends_at(AttentionPath::kLocal) ? PipelineMode::kApart : config_->mode;
  return form() == ReplicaForm::kWhole
             ? PipelineSchedule(mode, decode_nodes(), layers, lanes)
             : PipelineSchedule(mode, config_->stages, layers, shard,
                                {.lane = lanes, .lanes = prefill_lanes()});
}

WindowShape EpochView::window_shape() const {
  const EpochConfig& config = *config_;
  // What moves from stage to stage of rows that attended where the slice before ran: chunks, or
  // under path local all.
  const uint32_t attended = attends_at(AttentionPath::kLocal)
                                ? config.rows_max + config.chunk_tokens_max
                                : config.chunk_tokens_max;
  return {
      .compute_nodes = compute_nodes(),
      .memory_nodes = config.attention_paths.on_memory_nodes() ? memory_nodes() : 1,
      .lanes = config.lanes,
      .rows_max = config.rows_max,
      .kv_rows_max =
          config.chunk_tokens_max + (config.attention_paths.fetch() ? config.rows_max : 0),
      .plan_ahead = config.plan_ahead,
      .spans_max = config.partition == Partition::kTokenRange && config.attention_paths.remote()
                       ? (config.sequence_tokens_max + config.span_tokens - 1) / config.span_tokens
                       : 0,
      .context_chunk_rows = form() == ReplicaForm::kWhole ? 0 : attended,
      .fetch_bytes = FetchWindowBytes(config),
      .token_set_bytes = TokenSetsBytesMax(config),
      .activation_width = config.activation_width,
      .shards = ShardsMax(config.stages),
      .layers = config.layers};
}

uint32_t EpochView::window_heads_min() const {
  uint32_t fewest = UINT32_MAX;
  for (const AttentionDescriptor& layer : config_->layers) {
    for (uint32_t node = 0; node < memory_nodes(); ++node) {
      for (uint32_t asker = 0; asker < decode_nodes(); ++asker) {
        const uint32_t heads = memory(node).HeadsFor(layer, asker).count;
        fewest = heads == 0 ? fewest : std::min(fewest, heads);
      }
    }
  }
  return fewest == UINT32_MAX ? 1 : fewest;
}

Stage ComputeNodeView::stage() const {
  const EpochConfig& config = epoch_.config();
  return epoch_.form() == ReplicaForm::kWhole
             ? Stage{.replica = node_, .layers = static_cast<uint32_t>(config.layers.size())}
             : config.stages[node_];
}

HeadRange ComputeNodeView::HeadsAt(const AttentionDescriptor& layer, uint32_t node) const {
  const HeadRange held = epoch_.memory(node).HeadsOf(layer);
  const ShardPart shard = stage().shard;
  return shard.count == 1 ? held
                          : CommonHeads(held, {.first = shard.first_head, .count = shard.heads});
}

EpochNodes ComputeNodeView::opens() const {
  EpochNodes nodes;
  if (epoch_.config().attention_paths.on_memory_nodes()) {
    nodes.memory = Indices(epoch_.memory_nodes());
  }
  for (uint32_t node = 0; node < epoch_.compute_nodes(); ++node) {
    const bool apart = epoch_.attends_at(AttentionPath::kLocal) &&
                       epoch_.compute(node).stage().replica != stage().replica;
    if (node != node_ && !apart) {
      nodes.compute.push_back(node);
    }
  }
  return nodes;
}

std::vector<uint32_t> ComputeNodeView::lanes() const {
  const PipelineSchedule schedule = epoch_.Schedule();
  std::vector<uint32_t> lanes;
  for (uint32_t lane = 0; lane < epoch_.config().lanes; ++lane) {
    if (schedule.Runs(node_, lane)) {
      lanes.push_back(lane);
    }
  }
  return lanes;
}

bool ComputeNodeView::keeps(uint32_t lane) const {
  const PipelineSchedule schedule = epoch_.Schedule(stage().shard.index);
  const auto layers = static_cast<uint32_t>(epoch_.config().layers.size());
  for (uint32_t slice = 0; slice <= layers; ++slice) {
    // Lanes rotate or they do not, whatever the step.
    if (schedule.NodeOf(lane, /*step=*/1, slice, /*pinned=*/false) != node_) {
      return false;
    }
  }
  return true;
}

bool ComputeNodeView::may_wait_on_device() const {
  const std::vector<uint32_t> run = lanes();
  return epoch_.config().compute_waits && epoch_.shards() == 1 && !is_for_prompts() &&
         !epoch_.is_spread() &&
         std::any_of(run.begin(), run.end(), [this](uint32_t lane) { return keeps(lane); });
}

HeadRange MemoryNodeView::HeadsOf(const AttentionDescriptor& layer) const {
  const EpochConfig& config = epoch_.config();
  if (config.partition == Partition::kHead) {
    return config.heads[node_];
  }
  if (epoch_.attends_at(AttentionPath::kLocal)) {
    const ShardPart shard = epoch_.compute(node_).stage().shard;
    return shard.count == 1 ? AllHeads(layer)
                            : HeadRange{.first = shard.first_head, .count = shard.heads};
  }
  return AllHeads(layer);
}

uint32_t MemoryNodeView::holder() const {
  return epoch_.attends_at(AttentionPath::kLocal) ? epoch_.compute(node_).stage().replica : node_;
}

HeadRange MemoryNodeView::HeadsFor(const AttentionDescriptor& layer, uint32_t asker) const {
  return epoch_.compute(asker).HeadsAt(layer, node_);
}

std::vector<AttentionDescriptor> MemoryNodeView::layers() const {
  const std::vector<AttentionDescriptor>& all = epoch_.config().layers;
  auto held = absl::MakeConstSpan(all);
  if (epoch_.attends_at(AttentionPath::kLocal)) {
    const Stage stage = epoch_.compute(node_).stage();
    held = held.subspan(stage.first_layer, stage.layers);
  }
  std::vector<AttentionDescriptor> layers;
  for (const AttentionDescriptor& layer : held) {
    layers.push_back(PartOf(layer, HeadsOf(layer)));
  }
  return layers;
}

bool MemoryNodeView::Holds(uint32_t named) const {
  switch (epoch_.config().partition) {
    case Partition::kHead:
      return epoch_.config().heads[node_].count > 0;
    case Partition::kTokenRange:
      return true;
    case Partition::kRequest:
    case Partition::kAuto:
      break;
  }
  return holder() == named;
}

EpochNodes MemoryNodeView::opens() const {
  EpochNodes nodes;
  if (epoch_.config().attention_paths.on_memory_nodes()) {
    nodes.compute = Indices(epoch_.compute_nodes());
  }
  return nodes;
}

std::vector<uint32_t> MemoryNodeView::lanes() const {
  return epoch_.config().attention_paths.on_memory_nodes() ? Indices(epoch_.config().lanes)
                                                           : std::vector<uint32_t>();
}

bool MemoryNodeView::may_wait_on_device() const {
  return epoch_.config().memory_waits && epoch_.shards() == 1 &&
         epoch_.config().partition != Partition::kTokenRange;
}

absl::StatusOr<EpochTopology> EpochTopology::Create(EpochConfig config) {
  LAMINA_RETURN_IF_ERROR(CheckStages(config));
  LAMINA_RETURN_IF_ERROR(CheckShares(config));
  LAMINA_RETURN_IF_ERROR(CheckPaths(config));
  LAMINA_RETURN_IF_ERROR(CheckHybrid(config));
  LAMINA_RETURN_IF_ERROR(CheckInt8(config));
  return EpochTopology(std::make_shared<const EpochConfig>(std::move(config)));
}

absl::StatusOr<ComputeNodeView> EpochTopology::FindCompute(const std::string& name) const {
  LAMINA_ASSIGN_OR_RETURN(const uint32_t node,
                          OwnIndex(config().compute_nodes, name, config().epoch));
  return compute(node);
}

absl::StatusOr<MemoryNodeView> EpochTopology::FindMemory(const std::string& name) const {
  LAMINA_ASSIGN_OR_RETURN(const uint32_t node,
                          OwnIndex(config().memory_nodes, name, config().epoch));
  return memory(node);
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
