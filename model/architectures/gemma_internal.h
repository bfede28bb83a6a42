// SPDX-License-Identifier: Apache-2.0
//
// What the Gemmas share (gemma.cc).

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "model/architectures/json_config_internal.h"
#include "model/gguf/gguf_file.h"
#include "model/graph.h"
#include "model/model_config.h"
#include "model/weight_source.h"

namespace lamina::model {

// What all have: the decoder's settings, the scale of the embedding, the activation.
absl::Status ReadGemmaJson(const JsonConfig& json, ModelConfig& config);
absl::Status ReadGemmaGguf(const GgufFile& file, const std::string& prefix, ModelConfig& config);

// Norms around the sublayers, soft caps, and the scale of scores from query_pre_attn_scalar.
absl::Status ReadGemmaCaps(const JsonConfig& json, ModelConfig& config);

// GGUF files do not say the scale of scores: it is 1 / sqrt(head_dim), but for the models of 27B
// parameters 1 / sqrt(width / query heads).
void SetGgufScale(uint32_t layers_of_27b, ModelConfig& config);

absl::StatusOr<Graph> BuildGemma(const ModelConfig& config, const WeightSource& weights);

}  // namespace lamina::model
