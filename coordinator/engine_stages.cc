// SPDX-License-Identifier: Apache-2.0
//
// Replicas that several compute nodes hold in stages: which layers each has.

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "coordinator/engine_internal.h"

namespace lamina::coordinator {

// Once for the life of the coordinator: nodes keep their weights over epochs.
absl::Status Engine::Impl::SplitReplicas() {
  for (const ReplicaOptions& replica : options.replicas) {
    std::vector<core::StageNode> stages;
    for (const std::string& name : replica.nodes) {
      if (const auto node = nodes.find(name); node != nodes.end()) {
        stages.push_back({.name = name, .speed = node->second.hello.identity.dense_speed});
      }
    }
    if (stages.size() < replica.nodes.size() || stage_splits.contains(replica.name)) {
      continue;
    }
    core::StageSplit split{.layers = replica.layers, .why = "as configured"};
    if (replica.layers.empty()) {
      LAMINA_ASSIGN_OR_RETURN(split, core::SplitLayers(options.slice_costs, stages));
    } else {
      split.busiest_share = core::BusiestShare(options.slice_costs, stages, split.layers);
    }
    stage_splits[replica.name] = split;
    LogInfo("stages ", DescribeStages());
  }
  return absl::OkStatus();
}

std::optional<core::Stage> Engine::Impl::StageOf(const std::string& node) const {
  for (const ReplicaOptions& replica : options.replicas) {
    const auto split = stage_splits.find(replica.name);
    core::Stage stage;
    for (size_t i = 0; i < replica.nodes.size() && split != stage_splits.end(); ++i) {
      stage.layers = split->second.layers[i];
      if (replica.nodes[i] == node) {
        return stage;
      }
      stage.first_layer += stage.layers;
    }
  }
  return std::nullopt;
}

std::optional<core::Stage> Engine::Impl::LayersToLoad(const NodeHello& hello) const {
  for (const ReplicaOptions& replica : options.replicas) {
    const auto& names = replica.nodes;
    if (!hello.identity.is_memory && replica.layers.empty() &&
        std::find(names.begin(), names.end(), hello.identity.name) != names.end()) {
      return StageOf(hello.identity.name);
    }
  }
  return std::nullopt;
}

void Engine::Impl::NodeLoaded(const std::string& name, const absl::Status& status) {
  const auto node = nodes.find(name);
  if (node == nodes.end() || !node->second.loading) {
    return;
  }
  node->second.loading = false;
  const absl::Status joined = status.ok() ? membership.Join(name, /*is_memory=*/false) : status;
  if (!joined.ok()) {
    LogError("refused node ", name, ": ", joined.message());
    node->second.port->Refuse(std::string(joined.message()));
    nodes.erase(node);
    return;
  }
  transport.Reset();
  LogInfo("joined ", name, " pid ", node->second.hello.pid, " with its layers");
}

std::vector<core::Stage> Engine::Impl::StagesOf(
    const std::vector<const core::Member*>& compute) const {
  std::vector<core::Stage> stages;
  if (options.replicas.empty()) {
    return stages;
  }
  std::map<std::string, uint32_t> indices;
  uint32_t next = 0;
  for (const core::Member* member : compute) {
    core::Stage stage =
        StageOf(member->name)
            .value_or(core::Stage{.layers = static_cast<uint32_t>(options.layers.size())});
    if (member->replica.empty()) {
      stage.replica = next++;
    } else {
      const auto [index, is_new] = indices.try_emplace(member->replica, next);
      next += is_new;
      stage.replica = index->second;
    }
    stages.push_back(stage);
  }
  return stages;
}

std::string Engine::Impl::DescribeStages() const {
  std::string words;
  for (const auto& [name, split] : stage_splits) {
    absl::StrAppend(&words, words.empty() ? "" : "; ", name, ":");
    for (const ReplicaOptions& replica : options.replicas) {
      for (size_t i = 0; i < replica.nodes.size() && replica.name == name; ++i) {
        const core::Stage stage = *StageOf(replica.nodes[i]);
        absl::StrAppend(&words, i == 0 ? " " : ", ", replica.nodes[i], " ", stage.first_layer, "-",
                        stage.first_layer + stage.layers - 1);
      }
    }
    absl::StrAppend(&words, ", ", split.why);
  }
  return words;
}

}  // namespace lamina::coordinator
