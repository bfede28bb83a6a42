// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss: experts with a clamped SwiGLU and biases everywhere, a learned sink in the softmax of
// each query head, windows in every other layer. Its experts are stored in MXFP4.

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"

namespace lamina::model {
namespace {

constexpr float kLimit = 7.0f;
constexpr float kSlope = 1.702f;

void SetFamily(ModelConfig& config) {
  config.activation = "clamped_swiglu";
  config.attention_bias = true;
}

absl::Status ReadJson(const JsonConfig& json, ModelConfig& config) {
  config.rope.base = 150000.0f;  // Where the file does not say.
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.norm_epsilon, json.GetFloat("rms_norm_eps", 1e-5f));
  LAMINA_ASSIGN_OR_RETURN(const float limit, json.GetFloat("swiglu_limit", kLimit));
  LAMINA_ASSIGN_OR_RETURN(const float slope, json.GetFloat("swiglu_alpha", kSlope));
  if (limit != kLimit || slope != kSlope) {
    return absl::UnimplementedError(absl::StrCat("config.json: swiglu_limit ", limit,
                                                 " and swiglu_alpha ", slope,
                                                 "; only 7 and 1.702 are supported"));
  }
  SetFamily(config);
  LAMINA_ASSIGN_OR_RETURN(config.experts, json.GetUint("num_local_experts", 32));
  LAMINA_ASSIGN_OR_RETURN(const uint32_t chosen, json.GetUint("experts_per_token", 4));
  LAMINA_ASSIGN_OR_RETURN(config.experts_per_token, json.GetUint("num_experts_per_tok", chosen));
  LAMINA_ASSIGN_OR_RETURN(const uint32_t window, json.GetUint("sliding_window", 128));
  if (json.Has("layer_types")) {
    return ReadLayerWindows(json, window, config);
  }
  SetWindowPattern(window, 2, config);
  return absl::OkStatus();
}

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(file, "gpt-oss", config));
  SetFamily(config);
  config.rope.truncate = false;
  return ReadWindowPattern(file, "gpt-oss", config.window != 0 ? config.window : 128, /*period=*/2,
                           config);
}

absl::StatusOr<Graph> Build(const ModelConfig& config, const WeightSource& weights) {
  DecoderNames names = NamesFor(config, weights);
  if (config.format == FileFormat::kHuggingFace) {
    names.router = "mlp.router";
    names.experts.clear();
    names.gate_up = "mlp.experts.gate_up_proj";
    names.expert_down = "mlp.experts.down_proj";
  } else {
    names.mlp_norm = "post_attention_norm.weight";
  }
  return BuildGatedDecoder(config, names, weights,
                           {.qkv_bias = true,
                            .output_bias = true,
                            .expert_bias = true,
                            .sinks = true,
                            .gate_up_take_turns = true,
                            .experts_transposed = true,
                            .router = RouterKind::kChosenSoftmax});
}

}  // namespace

const Architecture& GptOssArchitecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "gpt_oss",
                       .hugging_face_types = {"gpt_oss"},
                       .gguf_name = "gpt-oss",
                       .models = "gpt-oss-20b, gpt-oss-120b",
                       .features = "experts, sinks, windows, MXFP4",
                       .read_json = ReadJson,
                       .read_gguf = ReadGguf,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
