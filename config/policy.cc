// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "config/memory_cores.h"
#include "config/policy_internal.h"
#include "config/replicas.h"
#include "config/weights_internal.h"
#include "plan/fetch_pieces.h"
#include "plan/limits.h"

namespace lamina::internal {
namespace {

absl::Status CheckKvOnCompute(const ClusterConfig& config) {
  for (size_t i = 0; i < config.compute.size(); ++i) {
    if (config.compute[i].capacity_bytes == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "compute.", i, ".capacity: missing or zero; with policy ", config.policy,
          " say how many bytes node '", config.compute[i].name, "' may use for KV, like 2GiB"));
    }
  }
  return absl::OkStatus();
}

// Each replica keeps K and V of its own lanes' sequences, from the first token of their prompts on.
absl::Status CheckReplicasThatKeepKv(const ClusterConfig& config) {
  const std::vector<ReplicaConfig> replicas = ReplicasOf(config);
  bool parts = false;
  for (const ReplicaConfig& replica : replicas) {
    parts = parts || replica.nodes.size() > 1;
    if (IsForPrompts(config, replica)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "compute.", replica.nodes.front(),
          ".role: prefill contradicts policy local, which keeps "
          "K and V where a sequence's prompt was computed; leave the role out, and the node is a "
          "replica like the others"));
    }
  }
  const size_t lanes = config.pipeline.lanes;
  if (lanes % replicas.size() != 0 || (!parts && lanes != replicas.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pipeline.lanes: ", lanes, " contradicts policy local: ",
        parts ? absl::StrCat("each of ", replicas.size(),
                             " replicas keeps K and V of lanes of its own, as many as the others; "
                             "set it to a multiple of ",
                             replicas.size(), ", or auto")
              : absl::StrCat("attention is never away, so a second lane of a replica would hide "
                             "nothing and read the weights once more; set it to ",
                             replicas.size(), " or auto")));
  }
  return absl::OkStatus();
}

absl::Status CheckLoad(const ClusterConfig& config) {
  const PolicyLoadConfig& load = config.policy_load;
  const auto out_of_range = [](absl::string_view key, uint32_t value, absl::string_view limit,
                               uint32_t most) {
    return absl::InvalidArgumentError(absl::StrCat("policy_load.", key, ": ", value,
                                                   " is not in [1, ", most, "], for limits.", limit,
                                                   " is ", most));
  };
  if (config.policy != kPolicyAuto) {
    return load == PolicyLoadConfig()
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat("policy_load: says what policy auto chooses for, and the policy "
                                  "is ",
                                  config.policy, "; remove it, or set policy to auto"));
  }
  // The default needs no smaller one where the limits are small.
  if (load == PolicyLoadConfig()) {
    return absl::OkStatus();
  }
  if (load.rows < 1 || load.rows > config.limits.running_max) {
    return out_of_range("rows", load.rows, "running_max", config.limits.running_max);
  }
  if (load.context < 1 || load.context > config.limits.sequence_tokens_max) {
    return out_of_range("context", load.context, "sequence_tokens_max",
                        config.limits.sequence_tokens_max);
  }
  if (load.prompts > config.limits.sequence_tokens_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policy_load.prompts: ", load.prompts, " tokens of prompts to a generated one are more ",
        "than requests can have: limits.sequence_tokens_max is ",
        config.limits.sequence_tokens_max));
  }
  return absl::OkStatus();
}

// Steps of nodes that decode are compared, and cores that a node shares with memory nodes are those
// of the only one.
absl::Status CheckReplicasOfAuto(const ClusterConfig& config) {
  const std::vector<ReplicaConfig> replicas = ReplicasOf(config);
  for (const ReplicaConfig& replica : replicas) {
    if (IsForPrompts(config, replica)) {
      const size_t first = replica.nodes.front();
      return absl::UnimplementedError(absl::StrCat(
          "compute.", first, ": node '", config.compute[first].name,
          "' is for prompts, which this version does not serve with policy auto: it compares steps "
          "of nodes that decode; leave that out, or set policy to attend_remote"));
    }
  }
  for (size_t i = 0; i < config.compute.size() && config.compute.size() > 1; ++i) {
    if (!SplitCoresOf(config, config.compute[i]).shared.empty()) {
      return absl::UnimplementedError(
          absl::StrCat("compute.", i,
                       ".cores: memory nodes name some of them, which this version serves with "
                       "policy auto where there is one compute node; give each cores of its own"));
    }
  }
  // With more than there may be local is out, and says so.
  if (const uint32_t lanes = LanesOfLocal(config);
      !config.pipeline.lanes_auto && config.pipeline.lanes < lanes && lanes <= plan::kLanesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pipeline.lanes: ", config.pipeline.lanes, " is less than the ", lanes, " that ",
        replicas.size(), replicas.size() == 1 ? " replica has" : " replicas have",
        " where policy auto chooses local: one for each, or for each stage of it; set it to ",
        lanes, " or more, or auto"));
  }
  return absl::OkStatus();
}

absl::Status CheckAuto(const ClusterConfig& config) {
  if (config.memory.empty()) {
    return absl::InvalidArgumentError(
        "memory: policy auto chooses between memory nodes and KV on the compute node, and the "
        "cluster has no memory node; name one, like - {name: m0, capacity: 2GiB}, or set policy to "
        "local");
  }
  const bool holds_kv =
      std::any_of(config.compute.begin(), config.compute.end(),
                  [](const ComputeNodeConfig& node) { return node.capacity_bytes > 0; });
  if (holds_kv) {  // Else policy local is out.
    LAMINA_RETURN_IF_ERROR(CheckKvOnCompute(config));
  }
  LAMINA_RETURN_IF_ERROR(CheckReplicasOfAuto(config));
  if (config.partition == Partition::kHead || config.partition == Partition::kTokenRange) {
    return absl::InvalidArgumentError(
        "partition: head and token_range spread KV over memory nodes, and with policy auto it may "
        "be on the compute node; set it to request, or policy to attend_remote");
  }
  const ComputeNodeConfig& node = config.compute[0];
  if (config.compute.size() == 1 && !node.cores.empty() && SplitCoresOf(config, node).own.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute.0.cores: memory nodes name all of them, so node '", node.name,
                     "' would have none to compute on while K and V are there; give it one that "
                     "they do not name, or set policy to local"));
  }
  return absl::OkStatus();
}

absl::Status CheckWhoAttends(const ClusterConfig& config) {
  for (size_t i = 0; i < config.memory.size() && config.policy == kPolicyAttendRemote; ++i) {
    if (!config.memory[i].attend) {
      return absl::InvalidArgumentError(absl::StrCat(
          "memory.", i, ".attend: false makes '", config.memory[i].name,
          "' a store, and with policy attend_remote memory nodes attend; remove it, or set policy "
          "to one that fetches, like fetch_heads"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLocal(const ClusterConfig& config) {
  if (!config.memory.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory: policy local keeps KV on the compute node, and ", config.memory.size(),
        " memory nodes (", config.memory[0].name, config.memory.size() > 1 ? ", ..." : "",
        ") would have nothing to do; remove them, or set policy to attend_remote, or to auto, "
        "which chooses"));
  }
  LAMINA_RETURN_IF_ERROR(CheckKvOnCompute(config));
  if (config.partition == Partition::kHead || config.partition == Partition::kTokenRange) {
    return absl::InvalidArgumentError(
        "partition: head and token_range spread KV over memory nodes, of which policy local has "
        "none; set it to request");
  }
  LAMINA_RETURN_IF_ERROR(CheckReplicasThatKeepKv(config));
  const bool first = config.pipeline.query_first == QueryFirst::kAlways;
  if (first || (!config.pipeline.chunks_auto && config.pipeline.chunks > 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pipeline.",
        first ? "query_first: always" : absl::StrCat("chunks: ", config.pipeline.chunks),
        " contradicts policy local: rows leave for no memory node; set it to auto"));
  }
  return absl::OkStatus();
}

// A key of `fetch` belongs to one policy.
absl::Status CheckKey(const ClusterConfig& config, absl::string_view key, bool is_set,
                      absl::string_view policy, absl::string_view says) {
  return !is_set || config.policy == policy
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("fetch.", key, ": says ", says,
                                                       ", and the policy is ", config.policy,
                                                       "; remove it, or set policy to ", policy));
}

absl::Status CheckPercent(absl::string_view key, uint32_t percent) {
  return percent <= 100
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("fetch.", key, ": ", percent,
                                                       " is no number from 0 to 100, nor auto"));
}

absl::Status CheckKvWeights(const ClusterConfig& config) {
  if (config.fetch.kv_weights_first) {
    return absl::OkStatus();
  }
  if (config.policy != kPolicyFetchHybrid) {
    LAMINA_RETURN_IF_ERROR(CheckKey(config, "kv_weights_first", /*is_set=*/true,
                                    kPolicyFetchRecompute, "in which order streamed weights come"));
  }
  return StreamsWeights(config)
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   "fetch.kv_weights_first: says in which order streamed weights come, and no "
                   "compute node has a weights_budget; remove it, or give one a budget");
}

// Whether K and V may be made again from token numbers: they have to be those that are stored.
absl::Status CheckTokens(const ClusterConfig& config) {
  const FetchConfig& fetch = config.fetch;
  if (!config.RecomputesFromTokens()) {
    return fetch.recompute_tokens_max == FetchConfig().recompute_tokens_max
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     "fetch.recompute_tokens_max: says of how many tokens K and V are made from "
                     "their numbers, and fetch.recompute is activations; remove it, or set "
                     "fetch.recompute to tokens");
  }
  if (fetch.recompute_tokens_max == 0 || fetch.recompute_tokens_max % plan::kFetchTile != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fetch.recompute_tokens_max: ", fetch.recompute_tokens_max, " is not a multiple of ",
        plan::kFetchTile, " from ", plan::kFetchTile, " on, as K and V are made in whole tiles"));
  }
  if (fetch.resident_bytes > 0) {
    return absl::InvalidArgumentError(
        "fetch.resident: is for activations, and with fetch.recompute tokens there are none; "
        "remove it, or set fetch.recompute to activations");
  }
  return config.attention.Named().decode == config.attention.Named().prefill
             ? absl::OkStatus()
             : absl::UnimplementedError(
                   "fetch.recompute: tokens is served by this version with one attention for "
                   "prompts and decode rows; set attention.prefill to what attention.decode is");
}

absl::Status CheckKeys(const ClusterConfig& config) {
  const FetchConfig& fetch = config.fetch;
  const FetchConfig defaults;
  if (config.policy != kPolicyFetchSparse) {
    LAMINA_RETURN_IF_ERROR(CheckKey(config, "heads", !fetch.heads_auto, kPolicyFetchHeads,
                                    "how many KV heads come together"));
  }
  LAMINA_RETURN_IF_ERROR(CheckKey(config, "caching_ratio",
                                  fetch.caching_ratio != defaults.caching_ratio, kPolicyFetchSparse,
                                  "to which tokens rows attend"));
  LAMINA_RETURN_IF_ERROR(CheckKey(config, "sparse", fetch.sparse != defaults.sparse,
                                  kPolicyFetchSparse, "to which tokens rows attend"));
  LAMINA_RETURN_IF_ERROR(CheckKey(config, "recompute_percent", !fetch.recompute_auto,
                                  kPolicyFetchRecompute, "how many tokens are recomputed"));
  LAMINA_RETURN_IF_ERROR(CheckKey(config, "recompute", fetch.recompute != defaults.recompute,
                                  kPolicyFetchRecompute, "from what K and V are made again"));
  LAMINA_RETURN_IF_ERROR(CheckTokens(config));
  LAMINA_RETURN_IF_ERROR(CheckKvWeights(config));
  LAMINA_RETURN_IF_ERROR(CheckKey(config, "activation_percent", !fetch.activation_auto,
                                  kPolicyFetchHybrid, "how many tokens are held as activations"));
  LAMINA_RETURN_IF_ERROR(CheckKey(config, "packing", fetch.packing, kPolicyFetchHybrid,
                                  "that requests of lanes change places"));
  LAMINA_RETURN_IF_ERROR(CheckPercent("recompute_percent", fetch.recompute_percent));
  LAMINA_RETURN_IF_ERROR(CheckPercent("activation_percent", fetch.activation_percent));
  return fetch.heads_auto || fetch.heads > 0
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   "fetch.heads: 0 KV heads cannot come together; set it to auto, or to a number "
                   "from 1 on");
}

// Where sequences are cut into spans, rows see all of them: all tokens come, are here, or are made
// again.
absl::Status CheckFetchPartition(const ClusterConfig& config) {
  if (config.partition != Partition::kTokenRange || config.fetch.streaming_heads.empty()) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "partition: token_range is not served by this version with policy ", config.policy,
      " and heads that stream; it serves request, head and auto; set it to one of these, or remove "
      "fetch.streaming_heads"));
}

// What compute nodes that name the tokens they want are not served with.
absl::Status CheckNamedTokens(const ClusterConfig& config) {
  const std::string policy =
      absl::StrCat("policy ", config.policy, config.KeepsRecent() ? " and fetch.resident" : "");
  if (config.prefill.mode != PrefillMode::kInline ||
      config.attention.Named().decode != config.attention.Named().prefill) {
    return absl::UnimplementedError(
        absl::StrCat("prefill.mode: only inline, with one attention for prompts and decode rows, "
                     "is served by this version with ",
                     policy));
  }
  return absl::OkStatus();
}

absl::Status CheckSparse(const ClusterConfig& config) {
  const FetchConfig& fetch = config.fetch;
  if (!(fetch.caching_ratio > 0 && fetch.caching_ratio <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fetch.caching_ratio: ", fetch.caching_ratio,
                     " is not in (0, 1]: so many of the tokens before a row are attended to"));
  }
  if (config.partition == Partition::kTokenRange) {
    return absl::UnimplementedError(
        "partition: token_range is not served by this version with policy fetch_sparse; set it to "
        "request, head or auto: rows attend to chosen tokens as to one sequence, which spans would "
        "cut elsewhere");
  }
  return CheckNamedTokens(config);
}

absl::Status CheckHeads(const ClusterConfig& config) {
  if (!config.KeepsRecent()) {
    return absl::OkStatus();
  }
  if (!config.fetch.streaming_heads.empty()) {
    return absl::UnimplementedError(
        "fetch.resident: not served by this version with heads that stream; remove it, or "
        "fetch.streaming_heads");
  }
  if (config.Spills()) {
    return absl::UnimplementedError(
        "fetch.resident: not served by this version with policy fetch_heads and spill tiers; "
        "remove it, or memory.N.spill");
  }
  return CheckNamedTokens(config);
}

// Activations are kept in the compute type. With INT8, and from token numbers, there are none. How
// many fetch_hybrid chooses itself depends on the model: the coordinator knows it.
absl::Status CheckActivationType(const ClusterConfig& config) {
  const bool holds_some = !config.fetch.activation_auto && config.fetch.activation_percent > 0;
  const bool keeps_activations =
      (config.policy == kPolicyFetchHybrid && holds_some) ||
      (config.policy == kPolicyFetchRecompute && !config.RecomputesFromTokens());
  if (!keeps_activations || config.KeepsInt8() || config.compute[0].compute_type != "f32") {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "compute.0.compute_type: f32 is not served by this version with policy ", config.policy,
      ", for recomputation cannot pay: activations of 4 bytes an element are no fewer bytes than K "
      "and V; set it to bf16, or policy to fetch_heads"));
}

absl::Status CheckActivationsThatStay(const ClusterConfig& config) {
  if (!config.KeepsActivations()) {
    return absl::OkStatus();
  }
  const bool hybrid = config.Prepares(kPolicyFetchHybrid);
  if (config.KeepsInt8()) {
    return absl::UnimplementedError(
        absl::StrCat("fetch.resident: not served by this version with policy ",
                     hybrid ? kPolicyFetchHybrid : kPolicyFetchRecompute,
                     " and kv int8, where nothing is recomputed; remove it, or set kv to bf16"));
  }
  if (hybrid && !config.fetch.activation_auto && config.fetch.activation_percent == 0) {
    return absl::InvalidArgumentError(
        "fetch.resident: is for activations, and with activation_percent 0 no token is held as "
        "one; remove it, or set activation_percent to auto");
  }
  return absl::OkStatus();
}

absl::Status CheckBudgets(const ClusterConfig& config) {
  for (size_t i = 0; i < config.compute.size(); ++i) {
    const ComputeNodeConfig& node = config.compute[i];
    const uint64_t fetch = config.fetch.window_bytes + config.fetch.resident_bytes;
    if (node.memory_budget_bytes > 0 && node.memory_budget_bytes < fetch) {
      const bool resident = config.fetch.resident_bytes > 0;
      return absl::InvalidArgumentError(absl::StrCat(
          "compute.", i, ".memory_budget: ", FormatBytes(node.memory_budget_bytes),
          " has no room for fetch.window", resident ? " and fetch.resident, " : ", ",
          FormatBytes(fetch), "; raise it, or lower fetch.window", resident ? " or resident" : ""));
    }
  }
  return absl::OkStatus();
}

// Which of its keys policy auto takes from the file: how many tokens come as activations it settles
// itself, and it takes no lossy policy.
absl::Status CheckFetchOfAuto(const ClusterConfig& config) {
  const FetchConfig taken = {.window_bytes = config.fetch.window_bytes,
                             .heads = config.fetch.heads,
                             .heads_auto = config.fetch.heads_auto};
  if (config.fetch == taken) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "fetch: with policy auto window and heads may be set; it settles recompute, "
      "recompute_percent and activation_percent itself, and takes no lossy policy, to which "
      "caching_ratio, sparse and streaming_heads belong; nor does it weigh what resident saves, or "
      "packing, or stream weights, to which kv_weights_first belongs; remove these");
}

absl::Status CheckFetch(const ClusterConfig& config) {
  if (config.policy == kPolicyAuto) {
    return CheckFetchOfAuto(config);
  }
  if (!config.Fetches()) {
    return config.fetch == FetchConfig()
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(
                     "fetch: says how K and V are fetched, and the policy is ", config.policy,
                     "; remove it, or set policy to one that fetches, like fetch_heads"));
  }
  if (config.compute.size() > 1) {
    return absl::UnimplementedError(absl::StrCat(
        "compute: ", config.compute.size(), " nodes are not served by this version with policy ",
        config.policy, "; it serves one, without stages, shards or nodes for prompts"));
  }
  LAMINA_RETURN_IF_ERROR(CheckBudgets(config));
  LAMINA_RETURN_IF_ERROR(CheckKeys(config));
  LAMINA_RETURN_IF_ERROR(CheckStreamingHeads(config));
  LAMINA_RETURN_IF_ERROR(CheckHeads(config));
  LAMINA_RETURN_IF_ERROR(CheckActivationType(config));
  LAMINA_RETURN_IF_ERROR(CheckActivationsThatStay(config));
  return config.policy == kPolicyFetchSparse ? CheckSparse(config) : CheckFetchPartition(config);
}

}  // namespace

uint32_t DefaultLanes(const ClusterConfig& config) {
  if (config.pipeline.mode == PipelineMode::kSequential) {
    return 1;
  }
  if (config.policy == kPolicyLocal) {
    return LanesOfLocal(config);
  }
  if (StreamsWeights(config)) {
    return 1;  // Lanes would wait for others' weights.
  }
  // The shards of a stage are one place.
  const uint32_t nodes =
      std::max(1u, config.CountCompute(ComputeRole::kCompute) / ShardsOf(config));
  const std::vector<ReplicaConfig> replicas = ReplicasOf(config);
  const bool several =
      std::any_of(replicas.begin(), replicas.end(), [&](const ReplicaConfig& replica) {
        return replica.nodes.size() > 1 && !IsForPrompts(config, replica);
      });
  return std::min({several ? 2 * nodes : nodes + 1, 8u, std::max(1u, config.limits.running_max)});
}

absl::Status CheckPolicy(const ClusterConfig& config) {
  LAMINA_RETURN_IF_ERROR(CheckLoad(config));
  LAMINA_RETURN_IF_ERROR(CheckFetch(config));
  if (config.policy == kPolicyAuto) {
    return CheckAuto(config);
  }
  if (config.policy == kPolicyLocal) {
    return CheckLocal(config);
  }
  LAMINA_RETURN_IF_ERROR(CheckWhoAttends(config));
  for (size_t i = 0; i < config.compute.size(); ++i) {
    if (config.compute[i].capacity_bytes > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("compute.", i, ".capacity: KV is on memory nodes with policy ",
                       config.policy, "; give it to one of them, or set policy to local"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::internal
