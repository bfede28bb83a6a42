// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster_options.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "config/memory_cores.h"
#include "config/replicas.h"
#include "coordinator/partition_options.h"
#include "coordinator/recompute_bytes.h"
#include "coordinator/recompute_options.h"
#include "coordinator/stage_options.h"
#include "coordinator/streaming_file.h"
#include "coordinator/weighed_policies.h"
#include "plan/fetch_pieces.h"
#include "plan/limits.h"
#include "plan/prefill_lanes.h"
#include "plan/resident_room.h"
#include "plan/slot_kinds.h"
#include "plan/streaming_tokens.h"
#include "plan/token_sets.h"
#include "plan/window_layout.h"
#include "policy/sparse_phases.h"

namespace lamina::coordinator {
namespace {

// Nodes report twice a second; a loaded host may be late.
constexpr Nanos kNodeSilenceMax = Seconds(10);

// The model may have been made for shorter sequences than the cluster file allows.
uint32_t SequenceTokensMax(const ClusterConfig& config, const model::ModelConfig& model) {
  const uint32_t wanted = config.limits.sequence_tokens_max;
  if (model.positions_max != 0 && wanted > model.positions_max) {
    LogWarning("limits.sequence_tokens_max ", wanted,
               " is more than the model was made for; using ", model.positions_max);
    return model.positions_max;
  }
  return wanted;
}

// The URI of a transport as the cluster file calls it.
std::string TransportUri(const ClusterConfig& config, const std::string& name) {
  return absl::EndsWith(name, "ucx") ? name.substr(0, name.size() - 3) + config.UcxUri()
                                     : name + "://";
}

// Whether tokens of prompts may be rows: these attend as decode rows do, so that both need the same
// arithmetic, and on devices they are not served yet.
bool ServesPromptRows(const ClusterConfig& config) {
  const auto on_processor = [](const auto& node) { return node.device == "cpu"; };
  return config.attention.Named().decode == config.attention.Named().prefill &&
         std::all_of(config.memory.begin(), config.memory.end(), on_processor) &&
         std::all_of(config.compute.begin(), config.compute.end(), on_processor);
}

core::SchedulerOptions SchedulerOptionsOf(const ClusterConfig& config,
                                          const model::ModelConfig& model) {
  const uint32_t lanes =
      config.pipeline.mode == PipelineMode::kSequential ? 1 : config.pipeline.lanes;
  // All of them run in one lane in epochs of policy local, which auto may choose.
  const uint32_t rows_max = config.policy == kPolicyAuto
                                ? config.limits.running_max
                                : (config.limits.running_max + lanes - 1) / lanes;
  // Half of a step's tokens at least are for prompts, so that full lanes do not starve them.
  const uint32_t step_tokens_max = std::max(config.prefill.chunk_tokens, 2 * rows_max);
  const uint32_t sequence_tokens_max = SequenceTokensMax(config, model);
  const bool with_decode = config.prefill.mode == PrefillMode::kInline;
  // With nodes for prompts rows are behind found prefixes alone.
  const bool prompt_rows =
      ServesPromptRows(config) && (with_decode || config.prefix_cache == PrefixCacheMode::kAuto);
  const bool bounded = prompt_rows && with_decode;
  const uint32_t scratch_tokens =
      bounded ? std::min(sequence_tokens_max, config.prefill.scratch_tokens) : sequence_tokens_max;
  core::SchedulerOptions options{
      .lanes = lanes,
      .lanes_auto = config.pipeline.lanes_auto,
      .sub_batches = {.chunks = config.pipeline.chunks,
                      .automatic = config.pipeline.chunks_auto,
                      .query_first = config.pipeline.query_first},
      .rows_max = rows_max,
      // As many as a chunk would have, so that prompts get on as fast with full lanes.
      .prompt_rows_max = prompt_rows ? config.prefill.chunk_tokens : 0,
      .step_tokens_max = step_tokens_max,
      .chunk_tokens = config.prefill.chunk_tokens,
      .scratch_tokens = std::max(scratch_tokens, step_tokens_max),
      .sequence_tokens_max = sequence_tokens_max,
      .running_max = config.limits.running_max,
      .waiting_max = config.limits.waiting_max,
      .prefix_cache = config.prefix_cache == PrefixCacheMode::kAuto && prompt_rows};
  return options;
}

PolicyAutoOptions PolicyAutoOptionsOf(const ClusterConfig& config) {
  PolicyAutoOptions options{.load = {.rows = static_cast<double>(config.policy_load.rows),
                                     .context = static_cast<double>(config.policy_load.context),
                                     .prompts = static_cast<double>(config.policy_load.prompts)}};
  for (MemoryCores& group : MemoryCoresOf(config, config.compute[0])) {
    options.memory.push_back({.names = std::move(group.names), .shared = group.shared});
  }
  return options;
}

// Replicas that keep K and V have lanes of their own; under policy auto as many as local by itself.
void UseReplicaLanes(const ClusterConfig& config, EngineOptions& options) {
  const std::vector<ReplicaConfig> replicas = ReplicasOf(config);
  const uint32_t lanes =
      config.policy == kPolicyAuto ? LanesOfLocal(config) : options.scheduler.lanes;
  options.replica_lanes = std::max(1u, lanes / static_cast<uint32_t>(replicas.size()));
  const bool parts = std::any_of(replicas.begin(), replicas.end(),
                                 [](const auto& replica) { return replica.nodes.size() > 1; });
  options.replica_lanes_why = "for no attention is away that another lane would hide";
  if (options.replica_lanes > 1) {
    options.replica_lanes_why =
        absl::StrCat(options.replica_lanes, " for each replica",
                     parts ? ": other stages and shards run one while it is elsewhere" : "");
  } else if (replicas.size() > 1) {
    options.replica_lanes_why = absl::StrCat("one for each replica, ", options.replica_lanes_why);
  }
  if (config.policy == kPolicyAuto && lanes <= plan::kLanesMax) {  // Else local is out.
    options.scheduler.lanes = std::max(options.scheduler.lanes, lanes);
  }
  if (config.policy == kPolicyLocal) {
    const auto all = static_cast<uint32_t>(replicas.size()) * options.replica_lanes;
    options.scheduler.lanes = std::max(options.scheduler.lanes, all);
    options.scheduler.lanes_auto = false;
    options.scheduler.lanes_why = options.replica_lanes_why;
  }
}

cost::PoolPrices PricesOf(const ClusterConfig& config) {
  cost::PoolPrices prices;
  for (const ComputeNodeConfig& node : config.compute) {
    (node.role == ComputeRole::kPrefill ? prices.prompts : prices.compute) += node.price_per_hour;
  }
  for (const MemoryNodeConfig& node : config.memory) {
    prices.memory += node.price_per_hour;
  }
  return prices;
}

std::string SparseWord(const ClusterConfig& config) {
  return absl::StrCat(kPolicyFetchSparse, "-", config.fetch.caching_ratio, "-",
                      SparseTokensName(config.fetch.sparse));
}

// With INT8 an activation has about as many bytes as K and V of its token, which are there anyway.
void UseNoActivations(uint32_t width, EngineOptions& options) {
  const auto layers = static_cast<double>(options.layers.size());
  const std::string why =
      absl::StrFormat("no activations with kv int8: one has %d bytes in a layer, K and V %.0f",
                      width * sizeof(BFloat16),
                      static_cast<double>(KvSlotBytes(options.layers, KvForm::kInt8)) / layers);
  options.scheduler.strategies.fetch_planning = [why] { return core::MakeFetchAllBecause(why); };
}

// What stays on the compute node with all rows that may run, and why none is recomputed. Both
// follow from bytes, which here stand for seconds of a link that has one a second.
std::string PhaseWords(const ClusterConfig& config, uint32_t width, const EngineOptions& options) {
  const auto layers = static_cast<double>(options.layers.size());
  const policy::PhaseBytes bytes{
      .kv = static_cast<double>(options.kv.SlotBytes(options.layers)) / layers,
      .activation = static_cast<double>(width * sizeof(BFloat16))};
  const plan::ResidentRoom room =
      config.KeepsInt8() ? plan::ResidentBlocksIn(config.fetch.resident_bytes, options.layers,
                                                  options.scheduler.int8_tails)
                         : plan::ResidentTilesIn(config.fetch.resident_bytes, options.layers);
  const uint32_t rows = options.scheduler.running_max;
  const uint32_t tokens = options.scheduler.sequence_tokens_max;
  const policy::PhaseProfile profile{.output = tokens,
                                     .ratio = options.fetch.sparse_ratio,
                                     .resident = std::min(room.tokens / rows, tokens),
                                     .kv = bytes.kv,
                                     .activation = bytes.activation};
  return absl::StrCat("of each of ", rows, " rows ",
                      policy::DescribePhases(profile, bytes, policy::SearchPhases(profile)));
}

// Among several policies steps of the others have words of their own.
void SayPhases(const ClusterConfig& config, uint32_t width, EngineOptions& options) {
  auto& planning = options.scheduler.strategies.fetch_planning;
  const std::string phases = PhaseWords(config, width, options);
  if (HasSeveralPolicies(options)) {
    planning = [phases, others = planning] {
      return core::MakeFetchByPath(plan::AttentionPath::kSparse, core::MakeFetchAllBecause(phases),
                                   others());
    };
  } else if (config.policy == kPolicyFetchSparse) {
    planning = [phases, words = SparseWord(config)] {
      return core::MakeFetchSparse(words, phases);
    };
  } else {
    planning = [phases] { return core::MakeFetchAllBecause(phases); };
  }
}

std::string StreamingWord(const StreamingHeads& streaming) {
  return absl::StrCat(kPolicyFetchHeads, "-", streaming.Word());
}

std::string LossyWordOf(const ClusterConfig& config, const StreamingHeads& streaming,
                        absl::string_view policy, KvForm kv) {
  std::vector<std::string> words;
  if (policy == kPolicyFetchSparse) {
    words.push_back(SparseWord(config));
  } else if (policy == kPolicyFetchHeads && !streaming.empty()) {
    words.push_back(StreamingWord(streaming));
  }
  if (kv == KvForm::kInt8) {
    words.emplace_back("kv_int8");
  }
  if (config.QuantisesWeights()) {
    words.emplace_back("weights_int8");
  }
  return absl::StrJoin(words, "-");
}

// Memory nodes send no token that stays on the compute node, so that it names the others, as with
// fetch_sparse: all that there are.
plan::AttentionPath PathOf(const ClusterConfig& config, const StreamingHeads& streaming,
                           absl::string_view policy) {
  if (policy == kPolicyFetchHeads && !streaming.empty()) {
    return plan::AttentionPath::kStreaming;
  }
  if (policy == kPolicyFetchHeads && config.KeepsRecent()) {
    return plan::AttentionPath::kSparse;
  }
  if (policy == kPolicyFetchHybrid && !config.KeepsInt8()) {
    return plan::AttentionPath::kHybrid;
  }
  if (policy == kPolicyFetchRecompute) {
    const bool nothing = config.KeepsInt8() && !config.RecomputesFromTokens();
    return nothing ? plan::AttentionPath::kFetch : plan::AttentionPath::kRecompute;
  }
  return policy == kPolicyLocal                                   ? plan::AttentionPath::kLocal
         : policy == kPolicyFetchSparse                           ? plan::AttentionPath::kSparse
         : policy == kPolicyAttendRemote || policy == kPolicyAuto ? plan::AttentionPath::kRemote
                                                                  : plan::AttentionPath::kFetch;
}

// The one for requests that name none first. Of several forms of K and V INT8 has a path of its
// own.
std::vector<PreparedPolicy> PoliciesOf(const ClusterConfig& config,
                                       const StreamingHeads& streaming) {
  std::vector<PreparedPolicy> policies;
  for (const KvForm kv : config.PreparedForms()) {
    const bool apart = config.HasBothForms() && kv == KvForm::kInt8;
    const auto first = static_cast<std::ptrdiff_t>(policies.size());
    for (const std::string& name : config.Prepared()) {
      const auto at = name == config.policy ? policies.begin() + first : policies.end();
      policies.insert(
          at, {.name = name,
               .path = apart ? plan::AttentionPath::kRemoteInt8 : PathOf(config, streaming, name),
               .lossy = LossyWordOf(config, streaming, name, kv),
               .kv = kv});
    }
  }
  return policies;
}

constexpr uint32_t kHalf = plan::SlotKinds::kUnit / 2;

void UseHybrid(const ClusterConfig& config, uint32_t width, EngineOptions& options) {
  options.fetch.activation_width = width;
  options.fetch.hybrid =
      config.fetch.activation_auto
          ? HybridOptions{.share = kHalf, .automatic = true}
          : HybridOptions{.share = config.fetch.activation_percent * plan::SlotKinds::kUnit / 100};
  options.fetch.hybrid->percent = HasSeveralPolicies(options) ? config.fetch.hybrid_percent : 0;
  UseResidentOfHybrid(config, options);
  if (config.fetch.packing) {
    options.scheduler.strategies.lane_packing = [bytes = RecomputeBytesOf(options.fetch, options)] {
      return core::MakeMiniBatches(bytes);
    };
  }
}

// The heads that the file names, with what they see.
absl::StatusOr<StreamingHeads> StreamingHeadsOf(const ClusterConfig& config,
                                                const model::Graph& graph,
                                                const model::ModelConfig& model) {
  if (config.fetch.streaming_heads.empty()) {
    return StreamingHeads();
  }
  LAMINA_ASSIGN_OR_RETURN(StreamingHeads streaming,
                          ReadStreamingFile(config.fetch.streaming_heads, model, LayersOf(graph)));
  if (!streaming.empty()) {
    streaming.sink = config.fetch.streaming_sink;
    streaming.window = config.fetch.streaming_window;
  }
  return streaming;
}

EngineOptions MakeOptions(const ClusterConfig& config, const StreamingHeads& streaming,
                          const model::Graph& graph, const model::ModelConfig& model) {
  EngineOptions options{.layers = LayersOf(graph),
                        .attention = config.attention,
                        .device_waits = config.pipeline.device_waits == DeviceWaits::kAuto,
                        .vocabulary = model.vocabulary,
                        .mode = config.pipeline.mode,
                        .scheduler = SchedulerOptionsOf(config, model),
                        .priority_order = config.order == ServiceOrderKind::kPriority,
                        .node_silence_max = kNodeSilenceMax,
                        .stuck_after = config.limits.stuck_after,
                        .prices = PricesOf(config)};
  options.policies = PoliciesOf(config, streaming);
  options.lossy = options.policies.front().lossy;
  options.transports.clear();
  for (const std::string& name : config.transport) {
    options.transports.push_back(TransportUri(config, name));
  }
  options.scheduler.windows = cost::LayerWindows(options.layers);
  for (const ComputeNodeConfig& node : config.compute) {
    options.nodes.push_back({.name = node.name,
                             .prefill = node.role == ComputeRole::kPrefill,
                             .holds_kv = KeepsKvOnCompute(config)});
  }
  for (const MemoryNodeConfig& node : config.memory) {
    options.nodes.push_back({.name = node.name, .is_memory = true});
  }
  if (const auto bus = BusOf(config); bus.has_value()) {
    options.bus_bytes_per_second = static_cast<double>(bus->bytes_per_second);
  }
  if (config.policy == kPolicyAuto) {
    options.policy_auto = PolicyAutoOptionsOf(config);
  }
  if (config.Fetches()) {
    options.fetch.bytes = config.fetch.window_bytes;
    options.fetch.heads = config.fetch.heads_auto ? 0 : config.fetch.heads;
  }
  options.fetch.streaming = streaming;
  if (!streaming.empty() && !HasSeveralPolicies(options)) {
    options.scheduler.strategies.fetch_planning = [words = StreamingWord(streaming)] {
      return core::MakeFetchStreaming(words);
    };
  }
  const bool recomputes = config.Prepares(kPolicyFetchRecompute);
  if (config.RecomputesFromTokens()) {
    UseTokens(config, options);
  } else if (config.KeepsInt8() && (recomputes || config.Prepares(kPolicyFetchHybrid))) {
    UseNoActivations(model.width, options);
  } else if (recomputes) {
    UseRecompute(config, model.width, options);
  } else if (config.Prepares(kPolicyFetchHybrid)) {
    UseHybrid(config, model.width, options);
  }
  if (config.Prepares(kPolicyFetchSparse)) {
    options.fetch.sparse_tokens = config.fetch.sparse;
    options.fetch.sparse_ratio = config.fetch.caching_ratio;
  } else if (config.KeepsRecent()) {
    options.fetch.sparse_tokens = SparseTokens::kLocal;  // Without weights: none are summed.
    options.fetch.sparse_ratio = 1;
  }
  // Among several policies its sequences leave the cache alone (SequenceRequest::lossy). Sums begin
  // with the rows of a prompt, and rows of a found prefix are not computed.
  if (config.policy == kPolicyFetchSparse && !HasSeveralPolicies(options)) {
    options.scheduler.prefix_cache = false;
  }
  if (config.Spills()) {
    options.spills = true;
    options.scheduler.strategies.out_of_slots = core::MakeSpillLast;
  }
  if (config.KeepsInt8()) {
    const bool both = config.HasBothForms();
    options.scheduler.kv = both ? KvForm::kBF16 : config.kv;
    options.scheduler.int8_tails = config.limits.running_max;
    options.kv = {.form = options.scheduler.kv,
                  .tails = options.scheduler.int8_tails,
                  .int8_percent = both ? config.kv_int8_percent : 0};
  }
  if (options.fetch.sparse_ratio > 0) {
    SayPhases(config, model.width, options);
  }
  if (KeepsKvOnCompute(config)) {
    UseReplicaLanes(config, options);
  }
  return options;
}

// With all nodes there, as the engine has them.
uint32_t PrefillLanes(const ClusterConfig& config) {
  uint32_t replicas = 0;
  uint32_t each = 0;
  for (const ReplicaConfig& replica : ReplicasOf(config)) {
    if (IsForPrompts(config, replica)) {
      ++replicas;
      each = std::max(
          each, plan::PrefillLanesOf(static_cast<uint32_t>(replica.nodes.size()) / replica.shards,
                                     replica.shards));
    }
  }
  return replicas * each;
}

// What of an epoch decides on the windows for K and V, with all nodes there.
plan::EpochConfig FetchingEpoch(const ClusterConfig& config, const EngineOptions& options) {
  plan::EpochConfig epoch{.lanes = options.scheduler.lanes,
                          .sequence_tokens_max = options.scheduler.sequence_tokens_max,
                          .layers = options.layers,
                          .fetch_bytes = options.fetch.bytes,
                          .fetch_heads = options.fetch.heads,
                          .activation_width = options.fetch.activation_width,
                          .activation_share = options.fetch.hybrid.has_value() ? kHalf : 0,
                          .made_tokens_max = options.fetch.made_tokens_max,
                          .partition = options.partition,
                          .span_tokens = options.scheduler.span_tokens};
  epoch.int8_tails = options.kv.tails;
  if (options.fetch.bytes > 0) {
    epoch.attention_paths = PathsOnMemoryNodes(options, options.fetch);
    epoch.sparse_tokens = options.fetch.sparse_tokens;
    epoch.sparse_ratio = options.fetch.sparse_ratio;
    epoch.streaming = options.fetch.streaming;
  }
  for (const ComputeNodeConfig& node : config.compute) {
    epoch.compute_nodes.push_back(node.name);
  }
  for (const MemoryNodeConfig& node : config.memory) {
    epoch.memory_nodes.push_back(node.name);
  }
  return epoch;
}

// Nodes would find it out one after the other.
absl::Status CheckWindows(const ClusterConfig& config, const EngineOptions& options,
                          uint32_t width) {
  const core::SchedulerOptions& limits = options.scheduler;
  uint32_t shards = 1;
  for (const ReplicaConfig& replica : ReplicasOf(config)) {
    shards = std::max(shards, replica.shards);
  }
  plan::EpochConfig epoch = FetchingEpoch(config, options);
  const uint32_t spans_max =
      limits.span_tokens == 0 || !epoch.attention_paths.remote()
          ? 0
          : (limits.sequence_tokens_max + limits.span_tokens - 1) / limits.span_tokens;
  LAMINA_RETURN_IF_ERROR(plan::CheckSparse(epoch));
  LAMINA_RETURN_IF_ERROR(plan::CheckStreaming(epoch));
  LAMINA_RETURN_IF_ERROR(plan::CheckFetch(epoch));
  const uint32_t rows_max = limits.rows_max + limits.prompt_rows_max;
  epoch.rows_max = rows_max;
  epoch.row_sequences_max = limits.rows_max;
  return plan::WindowLayout::Check(
      {.compute_nodes = static_cast<uint32_t>(config.compute.size()),
       .memory_nodes = static_cast<uint32_t>(std::max<size_t>(1, config.memory.size())),
       .lanes = limits.lanes + PrefillLanes(config),
       .rows_max = rows_max,
       .kv_rows_max = limits.step_tokens_max + (options.fetch.bytes > 0 ? rows_max : 0),
       .plan_ahead = limits.plan_ahead,
       .spans_max = spans_max,
       .fetch_bytes = plan::FetchWindowBytes(epoch),
       .token_set_bytes = plan::TokenSetsBytesMax(epoch),
       .activation_width = options.fetch.activation_width,
       .shards = shards,
       .part_row_bytes = width * sizeof(float),
       .layers = options.layers});
}

}  // namespace

std::vector<AttentionDescriptor> LayersOf(const model::Graph& graph) {
  std::vector<AttentionDescriptor> layers;
  for (const model::Op& op : graph.ops) {
    if (const auto* attention = std::get_if<model::AttentionOp>(&op.body)) {
      layers.push_back(attention->descriptor);
    }
  }
  return layers;
}

absl::StatusOr<EngineOptions> EngineOptionsOf(const ClusterConfig& config,
                                              const model::Graph& graph,
                                              const model::ModelConfig& model) {
  LAMINA_ASSIGN_OR_RETURN(const StreamingHeads streaming, StreamingHeadsOf(config, graph, model));
  EngineOptions options = MakeOptions(config, streaming, graph, model);
  LAMINA_RETURN_IF_ERROR(CheckActivationType(config, options));
  LAMINA_RETURN_IF_ERROR(CheckResidentActivations(config, options));
  LAMINA_RETURN_IF_ERROR(SettleStages(config, graph, options));
  LAMINA_RETURN_IF_ERROR(SettlePartition(config, options));
  LAMINA_RETURN_IF_ERROR(CheckWindows(config, options, model.width));
  options.part_row_bytes = model.width * sizeof(float);
  options.has_experts = model.experts > 0;
  if (options.policy_auto.has_value()) {
    LAMINA_ASSIGN_OR_RETURN(options.policy_auto->policies, WeighPolicies(config, graph, model));
    UsePlanningOfAuto(options);
  }
  return options;
}

}  // namespace lamina::coordinator
