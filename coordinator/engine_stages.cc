// SPDX-License-Identifier: Apache-2.0
//
// Replicas that several compute nodes hold in stages and shards: which layers each has, and how
// much of them.

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
    std::vector<plan::StageNode> stages;
    uint32_t there = 0;
    for (size_t i = 0; i < replica.nodes.size(); ++i) {
      const auto node = nodes.find(replica.nodes[i]);
      if (node == nodes.end()) {
        continue;
      }
      ++there;
      const double speed = node->second.hello.identity.dense_speed;
      if (i % replica.shards == 0) {
        stages.push_back({.name = replica.nodes[i], .speed = speed});
      } else if (!stages.empty()) {  // The shards of a stage work side by side.
        plan::StageNode& stage = stages.back();
        absl::StrAppend(&stage.name, "+", replica.nodes[i]);
        stage.speed = stage.speed > 0 && speed > 0 ? stage.speed + speed : 0;
      }
    }
    if (there < replica.nodes.size() || stage_splits.contains(replica.name)) {
      continue;
    }
    plan::StageSplit split{.layers = replica.layers, .why = "as configured"};
    if (replica.layers.empty()) {
      LAMINA_ASSIGN_OR_RETURN(split, plan::SplitLayers(options.slice_costs, stages));
    } else {
      split.busiest_share = plan::BusiestShare(options.slice_costs, stages, split.layers);
    }
    LAMINA_RETURN_IF_ERROR(SplitIntoShards(replica.shards));
    stage_splits[replica.name] = split;
    LogInfo("stages ", DescribeStages());
  }
  return absl::OkStatus();
}

// One split for all replicas and stages of so many shards: what goes from one to the next are a
// shard's heads.
absl::Status Engine::Impl::SplitIntoShards(uint32_t count) {
  if (count == 1 || shard_splits.contains(count)) {
    return absl::OkStatus();
  }
  std::vector<std::string> names(count);
  for (const ReplicaOptions& replica : options.replicas) {
    for (size_t i = 0; i < replica.nodes.size() && replica.shards == count; ++i) {
      std::string& name = names[i % count];
      absl::StrAppend(&name, name.empty() ? "" : "+", replica.nodes[i]);
    }
  }
  LAMINA_ASSIGN_OR_RETURN(shard_splits[count], plan::SplitShards(options.shard_costs, names));
  return absl::OkStatus();
}

bool Engine::Impl::IsForPrompts(const ReplicaOptions& replica) const {
  return std::any_of(membership.all().begin(), membership.all().end(),
                     [&](const core::Member& member) {
                       return member.prefill && member.name == replica.nodes.front();
                     });
}

uint32_t Engine::Impl::shards() const {
  for (const ReplicaOptions& replica : options.replicas) {
    if (!IsForPrompts(replica)) {
      return replica.shards;
    }
  }
  return 1;
}

// Sums over other shards have other bits: what decode makes of a token is not what a prompt with
// the same token makes of it.
std::string Engine::Impl::PrefillShardsWarning() const {
  const std::vector<const core::Member*> compute = membership.compute_members();
  const std::vector<plan::Stage> stages = StagesOf(compute);
  for (size_t i = 0; i < stages.size(); ++i) {
    if (compute[i]->prefill && stages[i].shard.count != shards()) {
      return absl::StrCat("bits may differ: prompts run in ", stages[i].shard.count,
                          stages[i].shard.count == 1 ? " shard (" : " shards (", compute[i]->name,
                          "), decode in ", shards(),
                          "; a request that is preempted or recovered may go on with other text");
    }
  }
  return "";
}

std::optional<plan::Stage> Engine::Impl::StageOf(const std::string& node) const {
  for (const ReplicaOptions& replica : options.replicas) {
    const auto split = stage_splits.find(replica.name);
    plan::Stage stage;
    for (size_t i = 0; i < replica.nodes.size() && split != stage_splits.end(); ++i) {
      stage.layers = split->second.layers[i / replica.shards];
      if (replica.nodes[i] == node) {
        stage.shard = replica.shards == 1
                          ? ShardPart()
                          : shard_splits.at(replica.shards).parts[i % replica.shards];
        return stage;
      }
      stage.first_layer += (i + 1) % replica.shards == 0 ? stage.layers : 0;
    }
  }
  return std::nullopt;
}

std::optional<plan::Stage> Engine::Impl::LayersToLoad(const NodeHello& hello) const {
  for (const ReplicaOptions& replica : options.replicas) {
    const auto& names = replica.nodes;
    if (!hello.identity.is_memory && (replica.layers.empty() || replica.shards > 1) &&
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
  threads.Answered(name, silence.awake());
  const absl::Status joined = status.ok() ? membership.Join(name, /*is_memory=*/false) : status;
  if (!joined.ok()) {
    LogError("refused node ", name, ": ", joined.message());
    node->second.port->Refuse(std::string(joined.message()));
    nodes.erase(node);
    silence.Forget(name);
    threads.Forget(name);
    return;
  }
  transport.Reset();
  LogInfo("joined ", name, " pid ", node->second.hello.pid, " with its layers");
}

std::vector<plan::Stage> Engine::Impl::StagesOf(
    const std::vector<const core::Member*>& compute) const {
  std::vector<plan::Stage> stages;
  if (options.replicas.empty()) {
    return stages;
  }
  std::map<std::string, uint32_t> indices;
  uint32_t next = 0;
  for (const core::Member* member : compute) {
    plan::Stage stage =
        StageOf(member->name)
            .value_or(plan::Stage{.layers = static_cast<uint32_t>(options.layers.size())});
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
        const plan::Stage stage = *StageOf(replica.nodes[i]);
        absl::StrAppend(&words, i == 0 ? " " : ", ", replica.nodes[i], " ", stage.first_layer, "-",
                        stage.first_layer + stage.layers - 1);
      }
    }
    absl::StrAppend(&words, ", ", split.layers.size() > 1 ? split.why : "all layers");
  }
  for (const auto& [count, split] : shard_splits) {
    absl::StrAppend(&words, "; shards ", split.why);
  }
  return words;
}

}  // namespace lamina::coordinator
