// SPDX-License-Identifier: Apache-2.0
//
// Qwen3: LLaMA's decoder with RMS norms of each head of q and k, and in some files a sliding window
// in the upper layers. The mixtures (Qwen3-MoE) have experts instead of the MLP in every layer; the
// weights of a token's experts are shares of a softmax over all of them, in most files made to sum
// to 1.

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"

namespace lamina::model {
namespace {

absl::Status ReadUpperWindow(const JsonConfig& json, ModelConfig& config) {
  LAMINA_ASSIGN_OR_RETURN(const bool slides, json.GetBool("use_sliding_window", false));
  if (!slides) {
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const uint32_t window, json.GetUint("sliding_window", 0));
  if (json.Has("layer_types")) {
    return ReadLayerWindows(json, window, config);
  }
  config.window = window;
  LAMINA_ASSIGN_OR_RETURN(config.window_first_layer, json.GetUint("max_window_layers", 28));
  return absl::OkStatus();
}

absl::Status ReadJson(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(json, config));
  config.head_norms = HeadNorms::kEachHead;
  LAMINA_ASSIGN_OR_RETURN(config.attention_bias, json.GetBool("attention_bias", false));
  return ReadUpperWindow(json, config);
}

absl::Status ReadMixtureJson(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadJson(json, config));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<uint32_t> dense, json.GetUints("mlp_only_layers"));
  LAMINA_ASSIGN_OR_RETURN(const uint32_t step, json.GetUint("decoder_sparse_step", 1));
  if (!dense.empty() || step != 1) {
    return absl::UnimplementedError(
        "config.json: mlp_only_layers or decoder_sparse_step: layers without experts between "
        "layers with them are not supported");
  }
  LAMINA_ASSIGN_OR_RETURN(config.ffn_width, json.GetUint("moe_intermediate_size"));
  LAMINA_ASSIGN_OR_RETURN(const uint32_t experts, json.GetUint("num_local_experts", 128));
  LAMINA_ASSIGN_OR_RETURN(config.experts, json.GetUint("num_experts", experts));
  LAMINA_ASSIGN_OR_RETURN(config.experts_per_token, json.GetUint("num_experts_per_tok", 8));
  LAMINA_ASSIGN_OR_RETURN(config.normalised_routes, json.GetBool("norm_topk_prob", false));
  return absl::OkStatus();
}

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  config.head_norms = HeadNorms::kEachHead;
  config.attention_bias = file.Find("blk.0.attn_q.bias") != nullptr;
  return ReadGatedDecoder(file, "qwen3", config);
}

absl::Status ReadMixtureGguf(const GgufFile& file, ModelConfig& config) {
  config.head_norms = HeadNorms::kEachHead;
  config.normalised_routes = true;  // These files do not say otherwise.
  return ReadGatedDecoder(file, "qwen3moe", config);
}

absl::StatusOr<Graph> Build(const ModelConfig& config, const WeightSource& weights) {
  return BuildGatedDecoder(
      config, weights,
      {.qkv_bias = config.attention_bias,
       .output_bias = config.attention_bias,
       .router = config.normalised_routes ? RouterKind::kSoftmaxNormalised : RouterKind::kSoftmax});
}

}  // namespace

const Architecture& Qwen3Architecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "qwen3",
                       .hugging_face_types = {"qwen3"},
                       .gguf_name = "qwen3",
                       .models = "Qwen3 0.6B to 32B",
                       .features = "norms of q and k by head",
                       .read_json = ReadJson,
                       .read_gguf = ReadGguf,
                       .build = Build};
  return *kArchitecture;
}

const Architecture& Qwen3MoeArchitecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "qwen3_moe",
                       .hugging_face_types = {"qwen3_moe"},
                       .gguf_name = "qwen3moe",
                       .models = "Qwen3-30B-A3B, Qwen3-235B-A22B",
                       .features = "norms of q and k by head, experts",
                       .read_json = ReadMixtureJson,
                       .read_gguf = ReadMixtureGguf,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
