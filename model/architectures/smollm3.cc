// SPDX-License-Identifier: Apache-2.0
//
// SmolLM3: LLaMA's decoder, in which every fourth layer has no rotary positions.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"

namespace lamina::model {
namespace {

constexpr uint32_t kInterval = 4;  // Where the files do not say.

absl::Status ReadJson(const JsonConfig& file, ModelConfig& config) {
  // Files leave out what is transformers' default.
  const JsonConfig json = file.WithDefaults(R"({"tie_word_embeddings": true})");
  config.rope.base = 2e6f;
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.attention_bias, json.GetBool("attention_bias", false));
  LAMINA_ASSIGN_OR_RETURN(config.mlp_bias, json.GetBool("mlp_bias", false));
  if (json.Has("layer_types")) {
    LAMINA_ASSIGN_OR_RETURN(const uint32_t window, json.GetUint("sliding_window", 0));
    LAMINA_RETURN_IF_ERROR(ReadLayerWindows(json, window, config));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<uint32_t> rotates, json.GetUints("no_rope_layers"));
  LAMINA_ASSIGN_OR_RETURN(const uint32_t interval,
                          json.GetUint("no_rope_layer_interval", kInterval));
  if (interval == 0 || (!rotates.empty() && rotates.size() < config.layers)) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: no_rope_layers says of ",
                                                   rotates.size(), " of ", config.layers,
                                                   " layers whether they have rotary positions"));
  }
  const uint32_t last = rotates.empty() ? 1024 : static_cast<uint32_t>(rotates.size());
  for (uint32_t layer = 0; layer < std::min(config.layers, last); ++layer) {
    if (rotates.empty() ? (layer + 1) % interval == 0 : rotates[layer] == 0) {
      config.layers_without_rope.push_back(layer);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(file, "smollm3", config));
  for (uint32_t layer = kInterval - 1; layer < std::min(config.layers, 1024u); layer += kInterval) {
    config.layers_without_rope.push_back(layer);
  }
  return absl::OkStatus();
}

absl::StatusOr<Graph> Build(const ModelConfig& config, const WeightSource& weights) {
  return BuildGatedDecoder(
      config, weights,
      {.rope_layout =
           config.format == FileFormat::kGguf ? RopeLayout::kInterleaved : RopeLayout::kHalves,
       .qkv_bias = config.attention_bias,
       .output_bias = config.attention_bias,
       .mlp_bias = config.mlp_bias});
}

}  // namespace

const Architecture& SmolLm3Architecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "smollm3",
                       .hugging_face_types = {"smollm3"},
                       .gguf_name = "smollm3",
                       .models = "SmolLM3 3B",
                       .features = "layers without rotary positions",
                       .read_json = ReadJson,
                       .read_gguf = ReadGguf,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
