// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "config/enum_names_internal.h"
#include "config/weights_internal.h"

namespace lamina::internal {
namespace {

absl::Status CheckStreams(const ClusterConfig& config, absl::string_view key) {
  const auto not_served = [key](absl::string_view what) {
    return absl::UnimplementedError(absl::StrCat(
        key, ": weights that come from a store are not served by this version with ", what));
  };
  if (config.compute.size() > 1) {
    return not_served(absl::StrCat(config.compute.size(), " compute nodes; it serves one"));
  }
  if (config.compute[0].device != "cpu") {
    return not_served(absl::StrCat("compute on ", config.compute[0].device));
  }
  return config.policy == kPolicyAuto ? not_served("policy auto") : absl::OkStatus();
}

// Checks a node whose weights are packed, or int8.
absl::Status CheckBlocks(const ComputeNodeConfig& node, absl::string_view key) {
  const absl::string_view form = EnumName(kWeightsForms, node.weights);
  if (node.compute_type != "bf16") {
    return absl::InvalidArgumentError(absl::StrCat(key, ".weights: ", form,
                                                   " contradicts compute_type ", node.compute_type,
                                                   "; say auto or bf16"));
  }
  if (node.device != "cpu") {
    return absl::UnimplementedError(absl::StrCat(
        key, ".weights: ", form, " is not served by this version with compute on ", node.device));
  }
  return absl::OkStatus();
}

// `key` is how messages begin.
absl::Status CheckAhead(const ComputeNodeConfig& node, absl::string_view key) {
  const uint32_t usual = ComputeNodeConfig().weights_ahead;
  if (node.weights_ahead > usual) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, node.weights_ahead, " is neither 0 nor 1: so many layers come ahead of ",
                     "the one that runs, or none; set it to one of these"));
  }
  return node.weights_ahead == usual || node.weights_budget_bytes > 0
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(
                   key, "says how far ahead weights come that exceed weights_budget, which the ",
                   "node has not; give it one, or remove this"));
}

// Weights of 8 bits make other K and V, which nodes go on with that another node has begun.
absl::Status CheckAlike(const std::vector<ComputeNodeConfig>& nodes) {
  for (size_t i = 1; i < nodes.size(); ++i) {
    if ((nodes[i].weights == WeightsForm::kInt8) != (nodes[0].weights == WeightsForm::kInt8)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "compute.", i, ".weights: ", EnumName(kWeightsForms, nodes[i].weights),
          " contradicts compute.0.weights: ", EnumName(kWeightsForms, nodes[0].weights),
          ": nodes that go on with each other's K and V need the same weights; say int8 of all "
          "compute nodes, or of none"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool StreamsWeights(const ClusterConfig& config) {
  return std::any_of(config.compute.begin(), config.compute.end(),
                     [](const ComputeNodeConfig& node) { return node.weights_budget_bytes > 0; });
}

absl::Status CheckWeights(const ClusterConfig& config) {
  LAMINA_RETURN_IF_ERROR(CheckAlike(config.compute));
  for (size_t i = 0; i < config.compute.size(); ++i) {
    const ComputeNodeConfig& node = config.compute[i];
    if (node.weights == WeightsForm::kPacked || node.weights == WeightsForm::kInt8) {
      LAMINA_RETURN_IF_ERROR(CheckBlocks(node, absl::StrCat("compute.", i)));
    }
    LAMINA_RETURN_IF_ERROR(CheckAhead(node, absl::StrCat("compute.", i, ".weights_ahead: ")));
    if (node.weights_budget_bytes > 0) {
      return CheckStreams(config, absl::StrCat("compute.", i, ".weights_budget"));
    }
    if (node.weights_store != ComputeNodeConfig().weights_store) {
      return absl::InvalidArgumentError(
          absl::StrCat("compute.", i,
                       ".weights_store: says where weights lie that exceed "
                       "weights_budget, which the node has not; give it one, or remove this"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::internal
