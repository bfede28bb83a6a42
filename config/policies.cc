// SPDX-License-Identifier: Apache-2.0
//
// What an epoch prepares: several policies, of which a request chooses one.

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "config/policy_internal.h"

namespace lamina::internal {
namespace {

constexpr absl::string_view kPolicies[] = {
    kPolicyAttendRemote, kPolicyFetchHeads,  kPolicyFetchRecompute,
    kPolicyFetchHybrid,  kPolicyFetchSparse, kPolicyLocal,
    kPolicyAuto};

absl::Status CheckWord(absl::string_view key, const std::string& policy) {
  if (std::find(std::begin(kPolicies), std::end(kPolicies), policy) != std::end(kPolicies)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(key, ": '", policy, "' is not one of ", absl::StrJoin(kPolicies, ", ")));
}

// Why the policy is none of several; empty: it may be.
absl::string_view WhyAlone(absl::string_view policy) {
  if (policy == kPolicyLocal) {
    return "its K and V are on the compute node, and those of the others on memory nodes";
  }
  if (policy == kPolicyAuto) {
    return "it chooses one policy for all requests of an epoch";
  }
  return "";
}

absl::Status CheckOneOfSeveral(const std::string& policy) {
  if (const absl::string_view why = WhyAlone(policy); !why.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policies: ", policy, " cannot be one of several: ", why, "; name it alone, or remove it"));
  }
  return absl::OkStatus();
}

// Slots of fetch_hybrid are its own there: their room is a part of a memory node's.
absl::Status CheckHybrid(const ClusterConfig& config) {
  const uint32_t percent = config.fetch.hybrid_percent;
  if (!config.HoldsHybridApart()) {
    return percent == FetchConfig().hybrid_percent
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(
                     "fetch.hybrid_percent: says how slots are shared by fetch_hybrid and other "
                     "policies, and what is prepared is ",
                     absl::StrJoin(config.Prepared(), ", "),
                     "; remove it, or name fetch_hybrid and another one in policies"));
  }
  if (percent == 0 || percent >= 100) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fetch.hybrid_percent: ", percent,
        " leaves fetch_hybrid or the other policies no room; set it from 1 to 99, or name "
        "fetch_hybrid alone"));
  }
  if (config.Prepares(kPolicyFetchRecompute)) {
    return absl::UnimplementedError(
        "policies: fetch_recompute and fetch_hybrid are not served by this version in one list: "
        "the one has an activation in addition to K and V, the other in place of them; remove one "
        "of them");
  }
  if (!config.fetch.streaming_heads.empty()) {
    return absl::UnimplementedError(
        "policies: fetch_hybrid is not served by this version next to fetch_heads with heads that "
        "stream; remove it, or fetch.streaming_heads");
  }
  if (config.KeepsInt8()) {
    return absl::UnimplementedError(
        "policies: fetch_hybrid is not served by this version as one of several with kv int8, "
        "where no token is held as an activation; remove it for fetch_heads, or name it alone");
  }
  return config.partition != Partition::kTokenRange
             ? absl::OkStatus()
             : absl::UnimplementedError(
                   "partition: token_range is not served by this version with fetch_hybrid among "
                   "several policies; set it to request, head or auto, or name fetch_hybrid alone");
}

}  // namespace

absl::Status CheckPolicies(const ClusterConfig& config) {
  LAMINA_RETURN_IF_ERROR(CheckWord("policy", config.policy));
  std::set<absl::string_view> seen;
  for (size_t i = 0; i < config.policies.size(); ++i) {
    LAMINA_RETURN_IF_ERROR(CheckWord(absl::StrCat("policies.", i), config.policies[i]));
    if (!seen.insert(config.policies[i]).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("policies: names ", config.policies[i], " twice; once is enough"));
    }
  }
  if (!config.Prepares(config.policy)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policy: ", config.policy, " is for requests that name none, and policies has only ",
        absl::StrJoin(config.policies, ", "), "; set it to one of these, or add it there"));
  }
  LAMINA_RETURN_IF_ERROR(CheckHybrid(config));
  if (config.policies.size() <= 1) {
    return absl::OkStatus();
  }
  for (const std::string& policy : config.policies) {
    LAMINA_RETURN_IF_ERROR(CheckOneOfSeveral(policy));
  }
  if (config.Prepares(kPolicyFetchRecompute) && !config.fetch.streaming_heads.empty()) {
    return absl::UnimplementedError(
        "policies: fetch_recompute is not served by this version next to fetch_heads with heads "
        "that stream; remove it, or fetch.streaming_heads");
  }
  if (config.Prepares(kPolicyFetchRecompute) && config.KeepsInt8() &&
      !config.RecomputesFromTokens()) {
    return absl::UnimplementedError(
        "policies: fetch_recompute is not served by this version as one of several with kv int8, "
        "where it recomputes nothing from activations; remove it for fetch_heads, name it alone, "
        "or set fetch.recompute to tokens");
  }
  return absl::OkStatus();
}

ClusterConfig OfPolicy(const ClusterConfig& config, const std::string& policy) {
  ClusterConfig alone = config;
  alone.policies.clear();
  alone.policy = policy;
  const FetchConfig defaults;
  if (!alone.Fetches() && config.Fetches()) {
    alone.fetch = defaults;
    return alone;
  }
  if (policy != kPolicyFetchSparse && config.Prepares(kPolicyFetchSparse)) {
    alone.fetch.caching_ratio = defaults.caching_ratio;
    alone.fetch.sparse = defaults.sparse;
    alone.fetch.resident_bytes = defaults.resident_bytes;
  }
  if (policy != kPolicyFetchRecompute && config.Prepares(kPolicyFetchRecompute)) {
    alone.fetch.recompute = defaults.recompute;
    alone.fetch.recompute_tokens_max = defaults.recompute_tokens_max;
    alone.fetch.recompute_percent = defaults.recompute_percent;
    alone.fetch.recompute_auto = defaults.recompute_auto;
    alone.fetch.kv_weights_first = defaults.kv_weights_first;
  }
  if (policy != kPolicyFetchHybrid && config.Prepares(kPolicyFetchHybrid)) {
    alone.fetch.activation_percent = defaults.activation_percent;
    alone.fetch.activation_auto = defaults.activation_auto;
    alone.fetch.packing = defaults.packing;
    alone.fetch.kv_weights_first = defaults.kv_weights_first;
  }
  alone.fetch.hybrid_percent = defaults.hybrid_percent;
  if (policy != kPolicyFetchHeads && config.Prepares(kPolicyFetchHeads)) {
    alone.fetch.streaming_heads = defaults.streaming_heads;
    alone.fetch.streaming_sink = defaults.streaming_sink;
    alone.fetch.streaming_window = defaults.streaming_window;
  }
  if (policy != kPolicyFetchHeads && config.KeepsRecent()) {
    alone.fetch.resident_bytes = defaults.resident_bytes;
  }
  // K and V of fetch_sparse come in as many heads as those of fetch_heads, too.
  if ((policy == kPolicyFetchRecompute || policy == kPolicyFetchHybrid) &&
      (config.Prepares(kPolicyFetchHeads) || config.Prepares(kPolicyFetchSparse))) {
    alone.fetch.heads = defaults.heads;
    alone.fetch.heads_auto = defaults.heads_auto;
  }
  return alone;
}

}  // namespace lamina::internal
