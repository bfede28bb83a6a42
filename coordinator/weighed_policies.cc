// SPDX-License-Identifier: Apache-2.0
#include "coordinator/weighed_policies.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "config/replicas.h"
#include "coordinator/cluster_options.h"
#include "cost/step_cost.h"

namespace lamina::coordinator {
namespace {

// A cluster file of one of the policies that auto weighs.
ClusterConfig Weighed(const ClusterConfig& config, cost::KvPolicy policy) {
  ClusterConfig alone = config;
  const bool from_tokens = policy == cost::KvPolicy::kFetchTokens;
  alone.policy =
      from_tokens ? std::string(kPolicyFetchRecompute) : std::string(cost::KvPolicyName(policy));
  if (from_tokens) {
    alone.fetch.recompute = RecomputeFrom::kTokens;
  }
  alone.policy_load = {};
  alone.partition = Partition::kRequest;
  if (policy == cost::KvPolicy::kLocal) {
    alone.memory.clear();
    alone.pipeline.lanes = LanesOfLocal(alone);
    alone.pipeline.chunks_auto = true;
    alone.pipeline.query_first = QueryFirst::kAuto;
  } else {
    for (ComputeNodeConfig& node : alone.compute) {
      node.capacity_bytes = 0;
    }
  }
  if (!alone.Fetches()) {
    alone.fetch = {};
  } else if (policy != cost::KvPolicy::kFetchHeads) {
    alone.fetch.heads_auto = true;
  }
  return alone;
}

// What speaks against a policy: that it cannot pay, or what it would be refused for by itself.
WeighedPolicy Weigh(cost::KvPolicy policy, const ClusterConfig& config, const model::Graph& graph,
                    const model::ModelConfig& model) {
  WeighedPolicy weighed{.policy = policy};
  if (policy == cost::KvPolicy::kFetchRecompute || policy == cost::KvPolicy::kFetchHybrid) {
    const std::vector<AttentionDescriptor> layers = LayersOf(graph);
    const uint64_t kv = KvBytesPerToken(layers) / (layers.size() * sizeof(BFloat16));
    if (model.width >= kv) {
      weighed.why_not = absl::StrCat("recomputation cannot pay: an activation has ", model.width,
                                     " elements in a layer, K and V ", kv);
      return weighed;
    }
  }
  const ClusterConfig alone = Weighed(config, policy);
  if (const absl::Status valid = alone.Validate(); !valid.ok()) {
    weighed.why_not = std::string(valid.message());
    return weighed;
  }
  const absl::StatusOr<EngineOptions> options = EngineOptionsOf(alone, graph, model);
  if (!options.ok()) {
    weighed.why_not = std::string(options.status().message());
    return weighed;
  }
  weighed.fetch = options->fetch;
  return weighed;
}

absl::Status CheckSomePolicy(const std::vector<WeighedPolicy>& policies) {
  std::vector<std::string> why;
  for (const WeighedPolicy& policy : policies) {
    if (policy.why_not.empty()) {
      return absl::OkStatus();
    }
    why.push_back(absl::StrCat("not ", cost::KvPolicyName(policy.policy), ": ", policy.why_not));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "policy: auto finds none that this cluster can have; ", absl::StrJoin(why, "; ")));
}

}  // namespace

absl::StatusOr<std::vector<WeighedPolicy>> WeighPolicies(const ClusterConfig& config,
                                                         const model::Graph& graph,
                                                         const model::ModelConfig& model) {
  std::vector<WeighedPolicy> policies;
  for (const cost::KvPolicy policy : {cost::KvPolicy::kAttendRemote, cost::KvPolicy::kLocal,
                                      cost::KvPolicy::kFetchHeads, cost::KvPolicy::kFetchRecompute,
                                      cost::KvPolicy::kFetchHybrid, cost::KvPolicy::kFetchTokens}) {
    policies.push_back(Weigh(policy, config, graph, model));
  }
  policies.push_back({.policy = cost::KvPolicy::kFetchSparse,
                      .why_not = "lossy: taken only where the cluster file names it"});
  LAMINA_RETURN_IF_ERROR(CheckSomePolicy(policies));
  return policies;
}

}  // namespace lamina::coordinator
