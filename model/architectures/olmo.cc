// SPDX-License-Identifier: Apache-2.0
//
// OLMo 2: norms behind attention and MLP, none before; q and k are normalised over all their heads
// at once. OLMoE: norms before, the same norms of q and k, and experts.

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"

namespace lamina::model {
namespace {

absl::Status ReadJson(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(json, config));
  config.head_norms = HeadNorms::kAllHeads;
  config.norm_places = NormPlaces::kBehind;
  LAMINA_ASSIGN_OR_RETURN(config.attention_bias, json.GetBool("attention_bias", false));
  return absl::OkStatus();
}

absl::Status ReadMixtureJson(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadJson(json, config));
  config.norm_places = NormPlaces::kBefore;
  if (json.Has("clip_qkv")) {
    return absl::UnimplementedError("config.json: clip_qkv is not supported");
  }
  LAMINA_ASSIGN_OR_RETURN(config.norm_epsilon, json.GetFloat("rms_norm_eps", 1e-5f));
  LAMINA_ASSIGN_OR_RETURN(const uint32_t experts, json.GetUint("num_local_experts", 64));
  LAMINA_ASSIGN_OR_RETURN(config.experts, json.GetUint("num_experts", experts));
  LAMINA_ASSIGN_OR_RETURN(config.experts_per_token, json.GetUint("num_experts_per_tok", 8));
  LAMINA_ASSIGN_OR_RETURN(config.normalised_routes, json.GetBool("norm_topk_prob", false));
  return absl::OkStatus();
}

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  config.head_norms = HeadNorms::kAllHeads;
  config.norm_places = NormPlaces::kBehind;
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(file, "olmo2", config));
  // OLMo 3 bears that name too. Its full layers, and the scaled ones, are others than OLMo 2's.
  if (config.window != 0) {
    return absl::UnimplementedError(
        "olmo2.attention.sliding_window: OLMo 3, which has sliding windows, is not supported");
  }
  return absl::OkStatus();
}

absl::Status ReadMixtureGguf(const GgufFile& file, ModelConfig& config) {
  config.head_norms = HeadNorms::kAllHeads;
  config.normalised_routes = false;
  return ReadGatedDecoder(file, "olmoe", config);
}

absl::StatusOr<Graph> Build(const ModelConfig& config, const WeightSource& weights) {
  DecoderNames names = NamesFor(config, weights);
  if (config.format == FileFormat::kHuggingFace && config.norm_places == NormPlaces::kBehind) {
    names.attention_norm_behind = "post_attention_layernorm.weight";
    names.mlp_norm_behind = "post_feedforward_layernorm.weight";
  }
  return BuildGatedDecoder(
      config, names, weights,
      {.qkv_bias = config.attention_bias,
       .output_bias = config.attention_bias,
       .router = config.normalised_routes ? RouterKind::kSoftmaxNormalised : RouterKind::kSoftmax});
}

}  // namespace

const Architecture& Olmo2Architecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "olmo2",
                       .hugging_face_types = {"olmo2"},
                       .gguf_name = "olmo2",
                       .models = "OLMo 2 1B to 32B",
                       .features = "norms behind the sublayers, norms of q and k over all heads",
                       .read_json = ReadJson,
                       .read_gguf = ReadGguf,
                       .build = Build};
  return *kArchitecture;
}

const Architecture& OlmoeArchitecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "olmoe",
                       .hugging_face_types = {"olmoe"},
                       .gguf_name = "olmoe",
                       .models = "OLMoE-1B-7B",
                       .features = "norms of q and k over all heads, experts",
                       .read_json = ReadMixtureJson,
                       .read_gguf = ReadMixtureGguf,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
