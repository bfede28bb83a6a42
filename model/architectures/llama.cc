// SPDX-License-Identifier: Apache-2.0
//
// LLaMA 1 to 3, Mistral, SmolLM2 and whatever else calls itself "llama": in GGUF files Mixtral too.
//
// GGUF files have the rows of q and k of each head reordered so that rotated pairs are neighbours:
// there the rope layout is interleaved.

#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"

namespace lamina::model {
namespace {

// What Mistral's configuration class assumes when config.json does not say.
constexpr uint32_t kMistralWindow = 4096;

absl::Status ReadJson(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(json, config));
  LAMINA_ASSIGN_OR_RETURN(const std::string type, json.GetString("model_type", "llama"));
  if (type == "mistral") {
    const bool silent = !json.Contains("sliding_window");
    LAMINA_ASSIGN_OR_RETURN(config.window,
                            json.GetUint("sliding_window", silent ? kMistralWindow : 0));
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(config.attention_bias, json.GetBool("attention_bias", false));
  LAMINA_ASSIGN_OR_RETURN(config.mlp_bias, json.GetBool("mlp_bias", false));
  return absl::OkStatus();
}

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(file, "llama", config));
  config.attention_bias = file.Find("blk.0.attn_q.bias") != nullptr;
  config.mlp_bias = file.Find("blk.0.ffn_down.bias") != nullptr;
  return absl::OkStatus();
}

absl::StatusOr<Graph> Build(const ModelConfig& config, const WeightSource& weights) {
  const bool gguf = config.format == FileFormat::kGguf;
  GatedDecoderOptions options;
  options.rope_layout = gguf ? RopeLayout::kInterleaved : RopeLayout::kHalves;
  options.qkv_bias = config.attention_bias;
  options.output_bias =
      gguf ? weights.Find("blk.0.attn_output.bias") != nullptr : config.attention_bias;
  options.mlp_bias = config.mlp_bias;
  DecoderNames names = NamesFor(config, weights);
  if (config.experts != 0 && weights.Find("blk.0.ffn_gate_exps.weight") == nullptr) {
    return absl::UnimplementedError(
        "a GGUF file with a tensor for each expert, as they were written until 2024, is not "
        "supported; convert the model again");
  }
  return BuildGatedDecoder(config, names, weights, options);
}

}  // namespace

const Architecture& LlamaArchitecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "llama",
                       .hugging_face_types = {"llama", "mistral"},
                       .types_with_text = {"mistral3"},
                       .gguf_name = "llama",
                       .models = "LLaMA 1 to 3, Mistral, SmolLM2; Mixtral in GGUF files",
                       .features = "windows in some of Mistral's",
                       .read_json = ReadJson,
                       .read_gguf = ReadGguf,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
