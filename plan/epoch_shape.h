// SPDX-License-Identifier: Apache-2.0
//
// What compute and memory nodes both derive from an epoch's configuration.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/attention_descriptor.h"
#include "plan/epoch_config.h"
#include "plan/pipeline_schedule.h"
#include "plan/window_layout.h"

namespace lamina::plan {

WindowShape WindowShapeOf(const EpochConfig& config);

// For shards of that index. Requires: CheckRoles(), CheckStages().
PipelineSchedule ScheduleOf(const EpochConfig& config, uint32_t shard = 0);

// Errors: kInvalidArgument  so many prefill nodes that no node, or no lane, is left to decode;
//                           prefill lanes that are no multiple of their replicas.
absl::Status CheckRoles(const EpochConfig& config);

// The replicas for prompts alone, and their lanes. Requires: CheckRoles().
PrefillLanes PrefillLanesOf(const EpochConfig& config);

// Whether compute node `name` is for prompts alone.
bool IsPrefillNode(const EpochConfig& config, const std::string& name);

// The heads that memory node `node` holds of the sequences that are there.
HeadRange HeadsOf(const EpochConfig& config, const AttentionDescriptor& layer, uint32_t node);

// How many shards each replica that decodes has; 1: none. Those for prompts may have others.
inline uint32_t ShardsOf(const EpochConfig& config) {
  return config.stages.empty() ? 1 : config.stages.front().shard.count;
}

// The heads that compute node `asker` asks memory node `node` for, perhaps none.
HeadRange HeadsBetween(const EpochConfig& config, const AttentionDescriptor& layer, uint32_t node,
                       uint32_t asker);

// The fewest KV heads of decode rows that go from any compute node to any memory node.
uint32_t WindowHeadsMin(const EpochConfig& config);

// The attention of each layer over the heads that memory node `node` holds.
std::vector<AttentionDescriptor> LayersOf(const EpochConfig& config, uint32_t node);

// The configuration as a shard works with it: layers of its own heads, and memory nodes' heads
// counted among these. Requires: CheckStages(), CheckShares().
EpochConfig OfShard(EpochConfig config, const ShardPart& shard);

// Whether K and V of a sequence whose join names memory node `named` are on `node`: all, some
// heads, or perhaps some spans.
inline bool Holds(const EpochConfig& config, uint32_t node, uint32_t named) {
  switch (config.partition) {
    case Partition::kHead:
      return config.heads[node].count > 0;
    case Partition::kTokenRange:
      return true;
    case Partition::kRequest:
    case Partition::kAuto:
      break;
  }
  return node == named;
}

// Whether sequences have parts on several memory nodes, so that each takes part in every request.
inline bool IsSpread(const EpochConfig& config) { return config.partition != Partition::kRequest; }

// Errors: kInvalidArgument  slots or heads that do not fit the memory nodes or the layers; heads or
// spans that are not those of the partition.
absl::Status CheckShares(const EpochConfig& config);

// The layers that compute node `node` runs.
Stage StageOf(const EpochConfig& config, uint32_t node);

// Whether it is some of them only.
inline bool IsPartOfLayers(const EpochConfig& config, uint32_t node) {
  return StageOf(config, node).layers < config.layers.size();
}

// Errors: kInvalidArgument  stages that do not fit the compute nodes or the layers; as
// CheckRoles().
absl::Status CheckStages(const EpochConfig& config);

// Errors: kInvalidArgument  no attention path, one that this version does not know, or path local
// where compute nodes are not the ones that hold KV.
absl::Status CheckPaths(const EpochConfig& config);

// Whatever can be wrong with a configuration: as CheckStages(), CheckShares(), CheckPaths().
absl::Status CheckEpoch(const EpochConfig& config);

// The widest K of a layer, in elements; V is as wide.
uint32_t KvWidthMax(const std::vector<AttentionDescriptor>& layers);

// The widest row [q | k | v] of a layer, in elements.
uint32_t QkvWidthMax(const std::vector<AttentionDescriptor>& layers);

// The index of `own` among the nodes of its role. Errors: kInvalidArgument  it is not there.
absl::StatusOr<uint32_t> OwnIndex(const std::vector<std::string>& names, const std::string& own,
                                  uint64_t epoch);

// The URI to make the epoch's transport from: the options of verbs:// are each host's own.
inline const std::string& TransportUri(const EpochConfig& config, const std::string& verbs_uri) {
  return config.transport == "verbs://" ? verbs_uri : config.transport;
}

}  // namespace lamina::plan
