// SPDX-License-Identifier: Apache-2.0
//
// Stages: a model replica that is split by layers over several compute nodes. The stage of layers
// [a, b) runs slices a to b - 1, each with the attention behind it; the last stage runs the last
// slice too, which ends with the LM head and samples.
//
// A stage, or a replica of one stage, may again be split, by heads and MLP columns, over several
// nodes: its shards (tensor parallelism). They run the same slices of the same rows, and exchange
// parts of sums (model/shard.h). Shard 0 samples.
//
// Determinism: pure functions of their arguments.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/shard_part.h"

namespace lamina::plan {

// What one compute node runs.
struct Stage {
  uint32_t replica = 0;
  uint32_t first_layer = 0;
  uint32_t layers = 0;
  ShardPart shard = {};

  friend bool operator==(const Stage&, const Stage&) = default;
};

// What of the model's attention layers the node runs: its layers, of a shard with its heads alone.
// Requires: the layers are there.
std::vector<AttentionDescriptor> LayersOfStage(absl::Span<const AttentionDescriptor> model,
                                               const Stage& stage);

// Whether each replica, from 0 on, has every layer once, or once for each shard. Errors:
// kInvalidArgument.
absl::Status CheckStages(absl::Span<const Stage> nodes, uint32_t layers);

// Whether all these replicas have the same shards, and these every one of so many KV heads once.
// Errors: kInvalidArgument.
absl::Status CheckShards(absl::Span<const Stage> nodes, uint32_t kv_heads);

// The nodes of each replica, one replica after the other.
std::vector<std::vector<Stage>> ByReplica(absl::Span<const Stage> nodes);

// The most shards of any.
uint32_t ShardsMax(absl::Span<const Stage> nodes);

// A stage to be given its layers.
struct StageNode {
  std::string name;
  double speed = 0;  // Cost that it works off in a second, measured; 0: not known.
};

struct StageSplit {
  std::vector<uint32_t> layers;  // One entry for each stage.
  std::string why;               // "by cost", "by cost and measured speed: c0 0.67, c1 1.33"
  // Time of the stage that takes longest, against all of them on one node of mean speed: 1 / stages
  // is the best there can be.
  double busiest_share = 1;
};

// Speeds against their mean; all 1 if they are alike, which is within a tenth, or one is not known.
// Requires: one stage at least.
std::vector<double> RelativeSpeeds(absl::Span<const StageNode> stages);

// Cost of each stage's slices: of these layers, and of the last one also of the slice behind them.
// Requires: costs of one slice more than all layers.
std::vector<double> StageCosts(absl::Span<const double> slice_costs,
                               absl::Span<const uint32_t> layers);

// Splits slices of these costs (any unit; one more than layers, the last with the LM head) so that
// the slowest stage is as fast as can be; of several such splits that with the fewest layers in the
// earlier stages. If the speed of one stage is not known, or all are within a tenth, none counts.
// Errors: kInvalidArgument  more stages than layers; names them.
absl::StatusOr<StageSplit> SplitLayers(absl::Span<const double> slice_costs,
                                       absl::Span<const StageNode> stages);

// Time of the busiest stage as a part of the replica's, from these costs and speeds.
double BusiestShare(absl::Span<const double> slice_costs, absl::Span<const StageNode> stages,
                    absl::Span<const uint32_t> layers);

// What shards share out, and what it costs in weights: of each head and each column together.
struct ShardCosts {
  uint32_t heads = 0;
  uint32_t columns = 0;
  double head = 0;
  double column = 0;
};

struct ShardSplit {
  std::vector<ShardPart> parts;  // By index.
  // "of 3 KV heads and 1536 MLP columns c0 2 and 704, c1 1 and 832, by cost"
  std::string why;
};

// Gives each shard whole KV heads, and MLP columns in steps, so that all have as many weights as
// nearly as these allow. Measured speeds do not count: the split decides on bits.
// Errors: kInvalidArgument  more shards than KV heads, or than MLP columns.
absl::StatusOr<ShardSplit> SplitShards(const ShardCosts& costs,
                                       absl::Span<const std::string> names);

}  // namespace lamina::plan
