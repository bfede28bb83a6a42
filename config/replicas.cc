// SPDX-License-Identifier: Apache-2.0
#include "config/replicas.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "config/weights_internal.h"
#include "plan/limits.h"

namespace lamina {
namespace {

std::string KeyOf(size_t index, absl::string_view key) {
  return absl::StrCat("compute.", index, ".", key);
}

// Checks that the nodes of each stage have shards 0, 1, 2, ..., each once, and that every stage has
// as many. `nodes` gets the nodes of shard 0.
absl::Status CheckShards(const ClusterConfig& config, const ReplicaConfig& replica,
                         std::vector<size_t>& nodes) {
  const auto shard_of = [&](size_t i) { return config.compute[replica.nodes[i]].shard; };
  const auto stage_of = [&](size_t i) { return config.compute[replica.nodes[i]].stage; };
  const bool any = std::any_of(replica.nodes.begin(), replica.nodes.end(), [&](size_t index) {
    return config.compute[index].shard.has_value();
  });
  if (!any) {
    nodes = replica.nodes;
    return absl::OkStatus();
  }
  uint32_t expected = 0;
  for (size_t i = 0; i < replica.nodes.size(); ++i) {
    const size_t index = replica.nodes[i];
    const ComputeNodeConfig& node = config.compute[index];
    const bool new_stage = i > 0 && stage_of(i) != stage_of(i - 1);
    if (!node.shard.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(KeyOf(index, "shard"), ": missing; other nodes of replica '", replica.name,
                       "' are shards, so each says which it is"));
    }
    if (i > 0 && !new_stage && *node.shard == *shard_of(i - 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          KeyOf(index, "shard"), ": replica '", replica.name, "' has shard ", *node.shard,
          " twice, on ", config.compute[replica.nodes[i - 1]].name, " and ", node.name));
    }
    expected = new_stage ? 0 : expected;
    if (*node.shard != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(KeyOf(index, "shard"), ": replica '", replica.name, "' has shard ",
                       *node.shard, " and no shard ", expected, "; shards are counted from 0"));
    }
    if (node.layers != config.compute[replica.nodes[i - expected]].layers) {
      return absl::InvalidArgumentError(absl::StrCat(
          KeyOf(index, "layers"), ": differ from those of shard 0 of the same stage of ",
          "replica '", replica.name, "'"));
    }
    ++expected;
    const bool ends = i + 1 == replica.nodes.size() || stage_of(i + 1) != stage_of(i);
    if (ends && expected != replica.shards) {
      return absl::InvalidArgumentError(
          absl::StrCat(KeyOf(index, "shard"), ": replica '", replica.name, "' has ", expected,
                       " shards of stage ", node.stage.value_or(0), " and ", replica.shards,
                       " of its first; give every stage as many"));
    }
    if (*node.shard == 0) {
      nodes.push_back(index);
    }
  }
  return absl::OkStatus();
}

// The nodes of one replica, of several shards those of shard 0, have stages 0, 1, 2, ..., each
// once.
absl::Status CheckStages(const ClusterConfig& config, const ReplicaConfig& replica) {
  for (size_t stage = 0; stage < replica.nodes.size(); ++stage) {
    const size_t index = replica.nodes[stage];
    const ComputeNodeConfig& node = config.compute[index];
    if (!node.stage.has_value()) {
      if (replica.nodes.size() == 1) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat(KeyOf(index, "stage"), ": missing; replica '", replica.name, "' has ",
                       replica.nodes.size(), " nodes, so each says which stage or shard it is"));
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
    const auto place = [&](size_t index) {
      const ComputeNodeConfig& node = config.compute[index];
      return std::pair(node.stage.value_or(0), node.shard.value_or(0));
    };
    std::stable_sort(replica.nodes.begin(), replica.nodes.end(),
                     [&](size_t a, size_t b) { return place(a) < place(b); });
    const auto first_stage = [&](size_t index) {
      return config.compute[index].shard.has_value() &&
             place(index).first == place(replica.nodes[0]).first;
    };
    replica.shards = static_cast<uint32_t>(std::max<std::ptrdiff_t>(
        1, std::count_if(replica.nodes.begin(), replica.nodes.end(), first_stage)));
  }
  return replicas;
}

uint32_t LanesOfLocal(const ClusterConfig& config) {
  const std::vector<ReplicaConfig> replicas = ReplicasOf(config);
  uint32_t stages = 1;
  for (const ReplicaConfig& replica : replicas) {
    const auto count = static_cast<uint32_t>(replica.nodes.size()) / replica.shards;
    stages = std::max(stages, internal::StreamsWeights(config) ? 1 : count);
  }
  return static_cast<uint32_t>(replicas.size()) * stages;
}

bool IsForPrompts(const ClusterConfig& config, const ReplicaConfig& replica) {
  return config.compute[replica.nodes.front()].role == ComputeRole::kPrefill;
}

uint32_t ShardsOf(const ClusterConfig& config) {
  for (const ReplicaConfig& replica : ReplicasOf(config)) {
    if (!IsForPrompts(config, replica)) {
      return replica.shards;
    }
  }
  return 1;
}

bool IsStage(const ClusterConfig& config, const ComputeNodeConfig& node) {
  return !node.replica.empty() &&
         std::count_if(config.compute.begin(), config.compute.end(),
                       [&](const auto& other) { return other.replica == node.replica; }) > 1;
}

absl::Status CheckReplicas(const ClusterConfig& config) {
  for (size_t i = 0; i < config.compute.size(); ++i) {
    const ComputeNodeConfig& node = config.compute[i];
    const bool is_part =
        node.stage.has_value() || node.shard.has_value() || node.layers.has_value();
    if (node.replica.empty() && is_part) {
      const absl::string_view key = node.stage.has_value()   ? "stage"
                                    : node.shard.has_value() ? "shard"
                                                             : "layers";
      return absl::InvalidArgumentError(absl::StrCat(
          KeyOf(i, key), ": node '", node.name, "' is a ",
          node.shard.has_value() ? "shard" : "stage", " of no replica; name it, like replica: r0"));
    }
  }
  const std::vector<ReplicaConfig> replicas = ReplicasOf(config);
  const ReplicaConfig* decodes = nullptr;  // The first one that does.
  for (const ReplicaConfig& replica : replicas) {
    for (const size_t index : replica.nodes) {
      if (config.compute[index].role != config.compute[replica.nodes.front()].role) {
        return absl::InvalidArgumentError(
            absl::StrCat(KeyOf(index, "role"), ": differs from that of ",
                         config.compute[replica.nodes.front()].name, ", another node of replica '",
                         replica.name, "'; a replica is for prefill only as a whole, or not"));
      }
    }
    ReplicaConfig firsts{.name = replica.name};
    LAMINA_RETURN_IF_ERROR(CheckShards(config, replica, firsts.nodes));
    LAMINA_RETURN_IF_ERROR(CheckStages(config, firsts));
    LAMINA_RETURN_IF_ERROR(CheckLayers(config, firsts));
    if (IsForPrompts(config, replica)) {
      continue;
    }
    decodes = decodes == nullptr ? &replica : decodes;
    if (replica.shards != decodes->shards) {
      return absl::InvalidArgumentError(
          absl::StrCat(KeyOf(replica.nodes[0], "shard"), ": replica '", decodes->name, "' has ",
                       decodes->shards, " shards and replica '", replica.name, "' ", replica.shards,
                       "; give all replicas as many, those for prompts left out"));
    }
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
      !absl::SimpleAtoi(last, &range.last) || range.first > range.last ||
      range.last > plan::kLayersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a range of layers; write it like 0-14"));
  }
  return range;
}

}  // namespace lamina
