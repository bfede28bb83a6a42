// SPDX-License-Identifier: Apache-2.0
//
// ReplicaSplits: which layers, heads and columns each compute node has of a replica that several
// hold together, in stages and shards. Each split is made once, when all nodes of the replica are
// there, and stays: nodes keep their weights over epochs.
//
// Threading: the engine's thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/core/membership.h"
#include "coordinator/engine_options.h"
#include "plan/stages.h"

namespace lamina::coordinator {

class ReplicaSplits {
 public:
  // The options must outlive this.
  explicit ReplicaSplits(const EngineOptions& options) : options_(options) {}

  // Splits each replica all of whose nodes are there, and that is not split yet. `speeds` has the
  // dense speed of each compute node that is there; 0: not measured.
  // Errors: those of plan::SplitLayers() and plan::SplitShards().
  absl::Status Split(const std::map<std::string, double>& speeds);

  // What a compute node runs, with its replica's index left 0. Nothing if it is no stage or shard,
  // or if its replica is not split yet.
  std::optional<plan::Stage> StageOf(const std::string& node) const;
  // Whether a node joins when it has loaded its layers: they were chosen before; or with policy
  // auto, which compares what nodes have measured of them.
  bool JoinsLoaded(const std::string& node) const;
  // The layers that it loads; nothing as long as its replica is not split.
  std::optional<plan::Stage> LayersToLoad(const std::string& node) const;
  // What each of these compute nodes runs in an epoch.
  std::vector<plan::Stage> RunBy(absl::Span<const core::Member* const> compute) const;
  // As RunBy(); empty where all have whole replicas.
  std::vector<plan::Stage> StagesOf(absl::Span<const core::Member* const> compute) const;

  // Shards of each replica that decodes.
  uint32_t shards() const;
  // The busiest stage's part of a replica's work, over replicas that decode; 1: whole models.
  double busiest_share() const;

  // "r0: c0 0-18, c1 19-29, by cost"
  std::string Describe() const;
  // "0-18"; of a shard "0-29, KV heads 0-1, MLP columns 0-703"; empty if the node is neither.
  std::string DescribeLayers(const std::string& node) const;
  // Replicas whose layers were split by measured speeds that use has not borne out, in words; empty
  // if there are none. `slice_seconds`: of nodes that have run many, the mean time of a slice.
  std::string OddSpeeds(const std::map<std::string, double>& slice_seconds) const;
  // Says in words that prompts run in other shards than decode; empty if they do not.
  std::string PrefillShardsWarning(absl::Span<const core::Member* const> compute) const;

 private:
  absl::Status SplitReplica(const ReplicaOptions& replica,
                            const std::vector<plan::StageNode>& stages);
  absl::Status SplitIntoShards(uint32_t count);
  bool IsForPrompts(const ReplicaOptions& replica) const;
  // Null: the node is a replica by itself.
  const ReplicaOptions* ReplicaOf(const std::string& node) const;

  const EngineOptions& options_;
  std::map<std::string, plan::StageSplit> stages_;  // By replica,
  // and by what speeds: of each stage.
  std::map<std::string, std::vector<plan::StageNode>> split_by_;
  std::map<uint32_t, plan::ShardSplit> shards_;  // By the number of shards.
};

}  // namespace lamina::coordinator
