// SPDX-License-Identifier: Apache-2.0
//
// What the architecture files share: settings that all models have, and small parts of graphs.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/architectures/json_config_internal.h"
#include "model/gguf/gguf_file.h"
#include "model/graph.h"
#include "model/model_config.h"
#include "model/weight_source.h"

namespace lamina::model {

// layers, width, query heads, head size, vocabulary, positions: the keys that all config.json
// share.
absl::Status ReadCommon(const JsonConfig& json, ModelConfig& config);

// Reads these, the feed-forward width and the KV heads from "<prefix>.block_count" and so on.
absl::Status ReadCommon(const GgufFile& file, const std::string& prefix, ModelConfig& config);

// "layer_types": which layers have a window of `window` tokens.
// Errors: kInvalidArgument  fewer than layers. kUnimplemented  another type, by name.
absl::Status ReadLayerWindows(const JsonConfig& json, uint32_t window, ModelConfig& config);

// The last of every `period` layers attends to everything, the others to `window` tokens.
void SetWindowPattern(uint32_t window, uint32_t period, ModelConfig& config);

// A GGUF file says it by "<prefix>.attention.sliding_window_pattern": a period, 0 for windows in
// all layers, or a list of which layers have one. `period` stands in for a missing key.
// Errors: kInvalidArgument  neither a number nor a list of as many as there are layers.
absl::Status ReadWindowPattern(const GgufFile& file, const std::string& prefix, uint32_t window,
                               uint32_t period, ModelConfig& config);

// The number under `key`, where the file has it.
absl::Status ReadFactor(const GgufFile& file, const std::string& key, float& value);

// "silu", "gelu", ... Errors: kUnimplemented, listing the known ones.
absl::StatusOr<ActivationKind> ParseActivation(absl::string_view name);

// [rows, cols], and a vector of `cols`.
WeightId AddMatrix(GraphBuilder& builder, const std::string& name, uint32_t rows, uint32_t cols);
WeightId AddVector(GraphBuilder& builder, const std::string& name, uint32_t cols);

// in W^T + b with weights "<name>.weight" and, if asked, "<name>.bias".
LinearOp::Part AddPart(GraphBuilder& builder, const std::string& name, uint32_t rows, uint32_t cols,
                       bool bias);

// LayerNorm with "<name>.weight" and "<name>.bias".
NormOp AddLayerNorm(GraphBuilder& builder, const std::string& name, const ModelConfig& config);

// The attention op of `layer`, with the config's scale, window and soft cap.
AttentionOp MakeAttention(const ModelConfig& config, uint32_t layer);

// "model.layers.3." of "model.layers." and 3.
std::string LayerPrefix(absl::string_view prefix, uint32_t layer);

}  // namespace lamina::model
