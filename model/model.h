// SPDX-License-Identifier: Apache-2.0
//
// OpenModel: from a path to a graph, its weights, and its configuration.

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/graph.h"
#include "model/model_config.h"
#include "model/weight_source.h"

namespace lamina::model {

struct Model {
  ModelConfig config;
  Graph graph;
  std::unique_ptr<WeightSource> weights;
};

struct OpenOptions {
  // The longest sequence of the deployment (limits.sequence_tokens_max); 0: what the model was
  // trained for. All processes of a cluster say the same: it decides longrope's angles.
  uint32_t sequence_tokens_max = 0;
};

// `path` is a GGUF file or a Hugging Face directory (config.json and safetensors, one or many).
// Reads headers and metadata only: weights are read when asked for.
//
// Errors: kNotFound         nothing there; a directory without config.json or weights says which.
//         kUnimplemented    unknown architecture (lists the known ones) or tensor type.
//         kInvalidArgument  a setting that contradicts another, or a tensor whose shape does not
//         fit. kDataLoss         truncated or damaged file.
absl::StatusOr<Model> OpenModel(const std::string& path, const OpenOptions& options = {});

// Reads weight `id` of the graph as f32 [rows, cols], in the order that Weight::order asks for.
absl::Status ReadWeight(const Model& model, WeightId id, absl::Span<float> out);

// Reads a weight of another graph of the model: a shard's (model/shard.h).
absl::Status ReadWeight(const Graph& graph, const WeightSource& source, WeightId id,
                        absl::Span<float> out);

}  // namespace lamina::model
