// SPDX-License-Identifier: Apache-2.0
//
// Granite 3: LLaMA's decoder with factors on the embedding, on what each sublayer adds, on scores,
// and a divisor of the logits.

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"

namespace lamina::model {
namespace {

absl::Status CheckFactors(const ModelConfig& config) {
  for (const float factor : {config.embedding_scale, config.residual_scale, config.attention_scale,
                             config.logit_scale}) {
    if (!(factor > 0.0f && factor < 1e6f)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a multiplier of ", factor, " is impossible in a Granite model"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadJson(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.attention_bias, json.GetBool("attention_bias", false));
  LAMINA_ASSIGN_OR_RETURN(config.mlp_bias, json.GetBool("mlp_bias", false));
  LAMINA_ASSIGN_OR_RETURN(config.embedding_scale, json.GetFloat("embedding_multiplier", 1.0f));
  LAMINA_ASSIGN_OR_RETURN(config.residual_scale, json.GetFloat("residual_multiplier", 1.0f));
  LAMINA_ASSIGN_OR_RETURN(config.attention_scale, json.GetFloat("attention_multiplier", 1.0f));
  LAMINA_ASSIGN_OR_RETURN(const float divisor, json.GetFloat("logits_scaling", 1.0f));
  config.logit_scale = 1.0f / divisor;
  return CheckFactors(config);
}

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(file, "granite", config));
  float divisor = 1.0f;
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, "granite.embedding_scale", config.embedding_scale));
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, "granite.residual_scale", config.residual_scale));
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, "granite.attention.scale", config.attention_scale));
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, "granite.logit_scale", divisor));
  config.logit_scale = 1.0f / divisor;
  config.attention_bias = file.Find("blk.0.attn_q.bias") != nullptr;
  config.mlp_bias = file.Find("blk.0.ffn_down.bias") != nullptr;
  return CheckFactors(config);
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

const Architecture& GraniteArchitecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "granite",
                       .hugging_face_types = {"granite"},
                       .gguf_name = "granite",
                       .models = "Granite 3.0 to 3.3",
                       .features = "multipliers",
                       .read_json = ReadJson,
                       .read_gguf = ReadGguf,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
