// SPDX-License-Identifier: Apache-2.0
//
// The decoder that LLaMA and its descendants share: RMS norms before attention and before a gated
// MLP, rotary positions, no biases but those that a family adds.

#pragma once

#include "absl/status/statusor.h"
#include "model/architectures/json_config_internal.h"
#include "model/graph.h"
#include "model/model_config.h"
#include "model/weight_source.h"

namespace lamina::model {

// The settings of config.json that these models name alike.
absl::Status ReadGatedDecoder(const JsonConfig& json, ModelConfig& config);
// Of a GGUF file, under "<prefix>.".
absl::Status ReadGatedDecoder(const GgufFile& file, const std::string& prefix, ModelConfig& config);

struct GatedDecoderOptions {
  RopeLayout rope_layout = RopeLayout::kHalves;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
};

absl::StatusOr<Graph> BuildGatedDecoder(const ModelConfig& config,
                                        const GatedDecoderOptions& options);

}  // namespace lamina::model
