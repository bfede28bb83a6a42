// SPDX-License-Identifier: Apache-2.0
//
// What nodes ask of an epoch's configuration: EpochTopology (epoch_topology.h) in short forms, for
// those that keep a configuration, and a shard's view of it.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/attention_descriptor.h"
#include "plan/epoch_config.h"
#include "plan/epoch_topology.h"

namespace lamina::plan {

// Errors: those of EpochTopology::Create().
inline absl::Status CheckEpoch(const EpochConfig& config) {
  return EpochTopology::Create(config).status();
}

inline WindowShape WindowShapeOf(const EpochConfig& config) {
  return EpochView(config).window_shape();
}

// Rows of a step's matrices at most: its rows, and tokens of chunks.
inline uint32_t StepRowsMax(const EpochConfig& config) {
  const uint32_t both = config.rows_max + config.chunk_tokens_max;
  return config.step_tokens_max == 0 ? both : std::min(both, config.step_tokens_max);
}

// Sequences that have rows in one step at most.
inline uint32_t RowSequencesMax(const EpochConfig& config) {
  return config.row_sequences_max == 0 ? config.rows_max
                                       : std::min(config.rows_max, config.row_sequences_max);
}

inline PipelineSchedule ScheduleOf(const EpochConfig& config, uint32_t shard = 0) {
  return EpochView(config).Schedule(shard);
}

inline uint32_t ShardsOf(const EpochConfig& config) { return EpochView(config).shards(); }

inline bool IsSpread(const EpochConfig& config) { return EpochView(config).is_spread(); }

inline Stage StageOf(const EpochConfig& config, uint32_t node) {
  return ComputeNodeView(config, node).stage();
}

inline bool IsPartOfLayers(const EpochConfig& config, uint32_t node) {
  return !ComputeNodeView(config, node).has_all_layers();
}

inline HeadRange HeadsOf(const EpochConfig& config, const AttentionDescriptor& layer,
                         uint32_t node) {
  return MemoryNodeView(config, node).HeadsOf(layer);
}

inline HeadRange HeadsBetween(const EpochConfig& config, const AttentionDescriptor& layer,
                              uint32_t node, uint32_t asker) {
  return MemoryNodeView(config, node).HeadsFor(layer, asker);
}

inline std::vector<AttentionDescriptor> LayersOf(const EpochConfig& config, uint32_t node) {
  return MemoryNodeView(config, node).layers();
}

inline bool Holds(const EpochConfig& config, uint32_t node, uint32_t named) {
  return MemoryNodeView(config, node).Holds(named);
}

// Whether compute node `name` is for prefill only. Requires: CheckRoles().
bool IsPrefillNode(const EpochConfig& config, const std::string& name);

// The configuration as a shard works with it: layers of its own heads, and memory nodes' heads
// counted among these. It need not pass EpochTopology::Create(), but views of it hold.
EpochConfig OfShard(EpochConfig config, const ShardPart& shard);

// The widest K of a layer, in elements; V is as wide.
uint32_t KvWidthMax(const std::vector<AttentionDescriptor>& layers);

// The widest row [q | k | v] of a layer, in elements.
uint32_t QkvWidthMax(const std::vector<AttentionDescriptor>& layers);

// Elements of the activation that tokens whose rows are of the path bring to memory nodes behind k
// and v. 0: they bring none.
inline uint32_t ActivationWidthOf(const EpochConfig& config, AttentionPath path) {
  const bool brings = path == AttentionPath::kRecompute ||
                      (path == AttentionPath::kHybrid && config.activation_share > 0);
  return brings ? config.activation_width : 0;
}

// The URI to make the epoch's transport from: the options of verbs:// are each host's own, with
// something in front of it too ("throttle(latency=20us)+verbs://").
std::string TransportUri(const EpochConfig& config, const std::string& verbs_uri);

}  // namespace lamina::plan
