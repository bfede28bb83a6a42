// SPDX-License-Identifier: Apache-2.0
//
// From the cluster file and the model to the engine's options; and what only both together show to
// be impossible. The daemon and tests that run a cluster in one process make their options here.
//
// Determinism: pure functions, but for a warning in the log and the file of heads that stream.

#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/attention_descriptor.h"
#include "config/cluster_config.h"
#include "coordinator/engine_options.h"
#include "model/graph.h"
#include "model/model_config.h"

namespace lamina::coordinator {

// The attention of each layer.
std::vector<AttentionDescriptor> LayersOf(const model::Graph& graph);

// The options but for the model's fingerprint and who is told of requests. The partition is
// decided by what the file alone tells: bandwidths are not known yet. A model that was made for
// shorter sequences than the file allows lowers the limit, with a warning.
// Errors: those of SettleStages() (stage_options.h) and ReadStreamingFile() (streaming_file.h);
//         kInvalidArgument     a partition by head of layers with unlike or too few KV heads;
//                              windows of one kind beyond what WindowLayout::Check() takes.
//         kFailedPrecondition  policy auto with no policy that the cluster can have, and why none;
//                              a partition for which a memory node, or all of them, have too little
//                              room; under partition auto, that none can be served, and why.
absl::StatusOr<EngineOptions> EngineOptionsOf(const ClusterConfig& config,
                                              const model::Graph& graph,
                                              const model::ModelConfig& model);

}  // namespace lamina::coordinator
