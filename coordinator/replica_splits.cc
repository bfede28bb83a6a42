// SPDX-License-Identifier: Apache-2.0
#include "coordinator/replica_splits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace lamina::coordinator {
namespace {

// What noise of a measurement does not make.
constexpr double kFarSpeed = 1.5;

// The stages of the replica, each with the speed of all its shards; nothing if a node is missing.
std::vector<plan::StageNode> StageNodesOf(const ReplicaOptions& replica,
                                          const std::map<std::string, double>& speeds) {
  std::vector<plan::StageNode> stages;
  for (size_t i = 0; i < replica.nodes.size(); ++i) {
    const auto node = speeds.find(replica.nodes[i]);
    if (node == speeds.end()) {
      return {};
    }
    const double speed = node->second;
    if (i % replica.shards == 0) {
      stages.push_back({.name = replica.nodes[i], .speed = speed});
    } else {  // The shards of a stage work side by side.
      plan::StageNode& stage = stages.back();
      absl::StrAppend(&stage.name, "+", replica.nodes[i]);
      stage.speed = stage.speed > 0 && speed > 0 ? stage.speed + speed : 0;
    }
  }
  return stages;
}

// Whether a stage is that much faster or slower, against the mean of its replica, than it was taken
// for. Nothing is far where a speed is not known.
bool IsFar(const std::vector<plan::StageNode>& before, const std::vector<plan::StageNode>& now) {
  if (std::any_of(now.begin(), now.end(),
                  [](const plan::StageNode& stage) { return !(stage.speed > 0); })) {
    return false;
  }
  const std::vector<double> taken = plan::RelativeSpeeds(before);
  const std::vector<double> is = plan::RelativeSpeeds(now);
  for (size_t i = 0; i < is.size(); ++i) {
    if (is[i] > kFarSpeed * taken[i] || taken[i] > kFarSpeed * is[i]) {
      return true;
    }
  }
  return false;
}

std::string SpeedWords(const std::vector<plan::StageNode>& before,
                       const std::vector<plan::StageNode>& now) {
  const std::vector<double> taken = plan::RelativeSpeeds(before);
  const std::vector<double> is = plan::RelativeSpeeds(now);
  std::string words;
  for (size_t i = 0; i < is.size(); ++i) {
    absl::StrAppendFormat(&words, "%s %s was taken for %.2f of the mean speed and has %.2f",
                          i == 0 ? "" : ",", now[i].name, taken[i], is[i]);
  }
  return words;
}

}  // namespace

absl::Status ReplicaSplits::Split(const std::map<std::string, double>& speeds) {
  for (const ReplicaOptions& replica : options_.replicas) {
    const std::vector<plan::StageNode> stages = StageNodesOf(replica, speeds);
    if (!stages.empty() && !stages_.contains(replica.name)) {
      LAMINA_RETURN_IF_ERROR(SplitReplica(replica, stages));
      LogInfo("stages ", Describe());
    }
  }
  return absl::OkStatus();
}

absl::Status ReplicaSplits::SplitReplica(const ReplicaOptions& replica,
                                         const std::vector<plan::StageNode>& stages) {
  plan::StageSplit split{.layers = replica.layers, .why = "as configured"};
  if (replica.layers.empty()) {
    LAMINA_ASSIGN_OR_RETURN(split, plan::SplitLayers(options_.slice_costs, stages));
  } else {
    split.busiest_share = plan::BusiestShare(options_.slice_costs, stages, split.layers);
  }
  LAMINA_RETURN_IF_ERROR(SplitIntoShards(replica.shards));
  stages_[replica.name] = split;
  split_by_[replica.name] = stages;
  return absl::OkStatus();
}

// One split for all replicas and stages of so many shards: what goes from one to the next are a
// shard's heads.
absl::Status ReplicaSplits::SplitIntoShards(uint32_t count) {
  if (count == 1 || shards_.contains(count)) {
    return absl::OkStatus();
  }
  std::vector<std::string> names(count);
  for (const ReplicaOptions& replica : options_.replicas) {
    for (size_t i = 0; i < replica.nodes.size() && replica.shards == count; ++i) {
      std::string& name = names[i % count];
      absl::StrAppend(&name, name.empty() ? "" : "+", replica.nodes[i]);
    }
  }
  LAMINA_ASSIGN_OR_RETURN(plan::ShardSplit split, plan::SplitShards(options_.shard_costs, names));
  shards_[count] = std::move(split);
  return absl::OkStatus();
}

bool ReplicaSplits::IsForPrompts(const ReplicaOptions& replica) const {
  return std::any_of(options_.nodes.begin(), options_.nodes.end(), [&](const core::Member& member) {
    return member.prefill && member.name == replica.nodes.front();
  });
}

std::optional<plan::Stage> ReplicaSplits::StageOf(const std::string& node) const {
  for (const ReplicaOptions& replica : options_.replicas) {
    const auto split = stages_.find(replica.name);
    plan::Stage stage;
    for (size_t i = 0; i < replica.nodes.size() && split != stages_.end(); ++i) {
      stage.layers = split->second.layers[i / replica.shards];
      if (replica.nodes[i] == node) {
        stage.shard = replica.shards == 1 ? ShardPart()
                                          : shards_.at(replica.shards).parts[i % replica.shards];
        return stage;
      }
      stage.first_layer += (i + 1) % replica.shards == 0 ? stage.layers : 0;
    }
  }
  return std::nullopt;
}

const ReplicaOptions* ReplicaSplits::ReplicaOf(const std::string& node) const {
  for (const ReplicaOptions& replica : options_.replicas) {
    if (std::find(replica.nodes.begin(), replica.nodes.end(), node) != replica.nodes.end()) {
      return &replica;
    }
  }
  return nullptr;
}

bool ReplicaSplits::JoinsLoaded(const std::string& node) const {
  const ReplicaOptions* const replica = ReplicaOf(node);
  if (replica == nullptr) {
    return false;
  }
  // Stages whose layers the file names have loaded them when they start.
  return options_.policy_auto.has_value() ||
         ((replica->layers.empty() || replica->shards > 1) && stages_.contains(replica->name));
}

std::optional<plan::Stage> ReplicaSplits::LayersToLoad(const std::string& node) const {
  return JoinsLoaded(node) ? StageOf(node) : std::nullopt;
}

std::vector<plan::Stage> ReplicaSplits::StagesOf(
    absl::Span<const core::Member* const> compute) const {
  return options_.replicas.empty() ? std::vector<plan::Stage>() : RunBy(compute);
}

std::vector<plan::Stage> ReplicaSplits::RunBy(absl::Span<const core::Member* const> compute) const {
  std::vector<plan::Stage> stages;
  std::map<std::string, uint32_t> indices;
  uint32_t next = 0;
  for (const core::Member* member : compute) {
    plan::Stage stage =
        StageOf(member->name)
            .value_or(plan::Stage{.layers = static_cast<uint32_t>(options_.layers.size())});
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

uint32_t ReplicaSplits::shards() const {
  for (const ReplicaOptions& replica : options_.replicas) {
    if (!IsForPrompts(replica)) {
      return replica.shards;
    }
  }
  return 1;
}

double ReplicaSplits::busiest_share() const {
  double share = 0;
  for (const ReplicaOptions& replica : options_.replicas) {
    const auto split = stages_.find(replica.name);
    if (!IsForPrompts(replica) && split != stages_.end()) {
      share = std::max(share, split->second.busiest_share);
    }
  }
  return share == 0 ? 1 : share;
}

std::string ReplicaSplits::Describe() const {
  std::string words;
  for (const auto& [name, split] : stages_) {
    absl::StrAppend(&words, words.empty() ? "" : "; ", name, ":");
    for (const ReplicaOptions& replica : options_.replicas) {
      for (size_t i = 0; i < replica.nodes.size() && replica.name == name; ++i) {
        const plan::Stage stage = *StageOf(replica.nodes[i]);
        absl::StrAppend(&words, i == 0 ? " " : ", ", replica.nodes[i], " ", stage.first_layer, "-",
                        stage.first_layer + stage.layers - 1);
      }
    }
    absl::StrAppend(&words, ", ", split.layers.size() > 1 ? split.why : "all layers");
  }
  for (const auto& [count, split] : shards_) {
    absl::StrAppend(&words, "; shards ", split.why);
  }
  return words;
}

std::string ReplicaSplits::OddSpeeds(const std::map<std::string, double>& slice_seconds) const {
  std::string words;
  for (const ReplicaOptions& replica : options_.replicas) {
    const auto split = stages_.find(replica.name);
    if (split == stages_.end() || replica.shards > 1 || !replica.layers.empty()) {
      continue;
    }
    const std::vector<plan::StageNode>& before = split_by_.at(replica.name);
    std::vector<plan::StageNode> now = before;
    const std::vector<double> costs = plan::StageCosts(options_.slice_costs, split->second.layers);
    for (size_t i = 0; i < now.size(); ++i) {
      const auto seconds = slice_seconds.find(now[i].name);
      const double slices = split->second.layers[i] + (i + 1 == now.size() ? 1 : 0);
      now[i].speed = seconds == slice_seconds.end() || seconds->second <= 0
                         ? 0
                         : costs[i] / (slices * seconds->second);
    }
    if (IsFar(before, now)) {
      absl::StrAppend(&words, words.empty() ? "" : "; ", replica.name, ":",
                      SpeedWords(before, now));
    }
  }
  return words;
}

std::string ReplicaSplits::DescribeLayers(const std::string& node) const {
  const std::optional<plan::Stage> stage = StageOf(node);
  if (!stage.has_value()) {
    return "";
  }
  std::string words = absl::StrCat(stage->first_layer, "-", stage->first_layer + stage->layers - 1);
  if (const ShardPart& part = stage->shard; part.count > 1) {
    absl::StrAppend(&words, ", KV heads ", part.first_head, "-", part.first_head + part.heads - 1,
                    ", MLP columns ", part.first_column, "-", part.first_column + part.columns - 1);
  }
  return words;
}

// Sums over other shards have other bits: what decode makes of a token is not what a prompt with
// the same token makes of it.
std::string ReplicaSplits::PrefillShardsWarning(
    absl::Span<const core::Member* const> compute) const {
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

}  // namespace lamina::coordinator
