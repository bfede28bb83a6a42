// SPDX-License-Identifier: Apache-2.0
//
// Qwen2 and Qwen2.5: LLaMA's decoder with biases on q, k and v, and in some files a sliding window
// in the upper layers.

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"

namespace lamina::model {
namespace {

// "layer_types", where it is given, must say what the window and its first layer say.
absl::Status CheckLayerTypes(const JsonConfig& json, const ModelConfig& config) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> types, json.GetStrings("layer_types"));
  for (size_t layer = 0; layer < types.size(); ++layer) {
    const bool slides = config.window != 0 && layer >= config.window_first_layer;
    if (types[layer] != (slides ? "sliding_attention" : "full_attention")) {
      return absl::UnimplementedError(
          absl::StrCat("config.json: layer_types[", layer, "] is \"", types[layer],
                       "\"; only windows that begin at max_window_layers are supported"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadJson(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(json, config));
  config.attention_bias = true;
  LAMINA_ASSIGN_OR_RETURN(const bool slides, json.GetBool("use_sliding_window", false));
  if (slides) {
    LAMINA_ASSIGN_OR_RETURN(config.window, json.GetUint("sliding_window", 0));
    LAMINA_ASSIGN_OR_RETURN(config.window_first_layer, json.GetUint("max_window_layers", 28));
  }
  return CheckLayerTypes(json, config);
}

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  config.attention_bias = true;
  return ReadGatedDecoder(file, "qwen2", config);
}

absl::StatusOr<Graph> Build(const ModelConfig& config, const WeightSource& weights) {
  return BuildGatedDecoder(config, weights, {.qkv_bias = true});
}

}  // namespace

const Architecture& Qwen2Architecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "qwen2",
                       .hugging_face_types = {"qwen2"},
                       .gguf_name = "qwen2",
                       .models = "Qwen2, Qwen2.5",
                       .features = "biases of q, k and v, windows in the upper layers of some",
                       .read_json = ReadJson,
                       .read_gguf = ReadGguf,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
