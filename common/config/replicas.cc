// SPDX-License-Identifier: Apache-2.0
#include "common/config/replicas.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace lamina {
namespace {

constexpr uint32_t kLayersMax = 1u << 16;  // More than any model has.

std::string KeyOf(size_t index, absl::string_view key) {
  return absl::StrCat("compute.", index, ".", key);
}

// The nodes of one replica have stages 0, 1, 2, ..., each once.
absl::Status CheckStages(const ClusterConfig& config, const ReplicaConfig& replica) {
  for (size_t stage = 0; stage < replica.nodes.size(); ++stage) {
    const size_t index = replica.nodes[stage];
    const ComputeNodeConfig& node = config.compute[index];
    if (!node.stage.has_value()) {
      if (replica.nodes.size() == 1) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(KeyOf(index, "stage"), ": missing; replica '",
                                                     replica.name, "' has ", replica.nodes.size(),
                                                     " nodes, so each says which stage it is"));
    }
    if (stage > 0 && *node.stage == config.compute[replica.nodes[stage - 1]].stage) {
      return absl::InvalidArgumentError(absl::StrCat(
          KeyOf(index, "stage"), ": replica '", replica.name, "' has stage ", *node.stage,
          " twice, on ", config.compute[replica.nodes[stage - 1]].name, " and ", node.name));
    }
    if (*node.stage != stage) {
      return absl::InvalidArgumentError(
          absl::StrCat(KeyOf(index, "stage"), ": replica '", replica.name, "' has stage ",
                       *node.stage, " and no stage ", stage, "; its ", replica.nodes.size(),
                       " nodes are stages 0 to ", replica.nodes.size() - 1));
    }
  }
  return absl::OkStatus();
}

// Given for all or none, from layer 0 on without a gap. Where the model ends is not known here.
absl::Status CheckLayers(const ClusterConfig& config, const ReplicaConfig& replica) {
  uint32_t next = 0;
  for (const size_t index : replica.nodes) {
    const ComputeNodeConfig& node = config.compute[index];
    if (node.layers.has_value() != config.compute[replica.nodes[0]].layers.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(KeyOf(index, "layers"), ": replica '", replica.name,
                       "' has layers for some of its stages only; give all of them or none"));
    }
    if (!node.layers.has_value()) {
      continue;
    }
    if (node.layers->first != next) {
      return absl::InvalidArgumentError(absl::StrCat(
          KeyOf(index, "layers"), ": '", node.layers->first, "-", node.layers->last, "' ",
          node.layers->first < next ? "overlaps the stage before it" : "leaves layers out",
          "; stage ", node.stage.value_or(0), " of replica '", replica.name, "' begins at layer ",
          next));
    }
    next = node.layers->last + 1;
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ReplicaConfig> ReplicasOf(const ClusterConfig& config) {
  std::vector<ReplicaConfig> replicas;
  for (size_t i = 0; i < config.compute.size(); ++i) {
    const ComputeNodeConfig& node = config.compute[i];
    const auto same =
        std::find_if(replicas.begin(), replicas.end(), [&](const ReplicaConfig& replica) {
          return !node.replica.empty() && config.compute[replica.nodes[0]].replica == node.replica;
        });
    if (same != replicas.end()) {
      same->nodes.push_back(i);
    } else {
      replicas.push_back({.name = node.replica.empty() ? node.name : node.replica, .nodes = {i}});
    }
  }
  for (ReplicaConfig& replica : replicas) {
    std::stable_sort(replica.nodes.begin(), replica.nodes.end(), [&](size_t a, size_t b) {
      return config.compute[a].stage.value_or(0) < config.compute[b].stage.value_or(0);
    });
  }
  return replicas;
}

bool IsStage(const ClusterConfig& config, const ComputeNodeConfig& node) {
  return !node.replica.empty() &&
         std::count_if(config.compute.begin(), config.compute.end(),
                       [&](const auto& other) { return other.replica == node.replica; }) > 1;
}

absl::Status CheckReplicas(const ClusterConfig& config) {
  for (size_t i = 0; i < config.compute.size(); ++i) {
    const ComputeNodeConfig& node = config.compute[i];
    if (node.replica.empty() && (node.stage.has_value() || node.layers.has_value())) {
      return absl::InvalidArgumentError(
          absl::StrCat(KeyOf(i, node.stage.has_value() ? "stage" : "layers"), ": node '", node.name,
                       "' is a stage of no replica; name it, like replica: r0"));
    }
  }
  for (const ReplicaConfig& replica : ReplicasOf(config)) {
    LAMINA_RETURN_IF_ERROR(CheckStages(config, replica));
    LAMINA_RETURN_IF_ERROR(CheckLayers(config, replica));
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerRange> ParseLayers(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(text, '-');
  const absl::string_view last =
      text.find('-') == absl::string_view::npos ? ends.first : ends.second;
  const auto is_number = [](absl::string_view s) {
    return !s.empty() && std::all_of(s.begin(), s.end(), absl::ascii_isdigit);
  };
  LayerRange range;
  if (!is_number(ends.first) || !is_number(last) || !absl::SimpleAtoi(ends.first, &range.first) ||
      !absl::SimpleAtoi(last, &range.last) || range.first > range.last || range.last > kLayersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a range of layers; write it like 0-14"));
  }
  return range;
}

}  // namespace lamina
