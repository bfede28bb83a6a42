// SPDX-License-Identifier: Apache-2.0
//
// Gemma 1 and 2: the embedding is scaled by the square root of its width, the MLP's gate is a tanh
// GELU, and the weights of norms are stored less one. Gemma 2 adds norms behind the sublayers, soft
// caps of scores and logits, a scale of its own, and windows in every other layer.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"
#include "model/architectures/gemma_internal.h"
namespace lamina::model {
namespace {

absl::Status ReadGemma2Json(const JsonConfig& file, ModelConfig& config) {
  const JsonConfig json = file.WithDefaults(
      R"({"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
          "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})");
  LAMINA_RETURN_IF_ERROR(ReadGemmaJson(json, config));
  LAMINA_RETURN_IF_ERROR(ReadGemmaCaps(json, config));
  // A null is no cap, and a key that is left out is the default's.
  const auto is_null = [&](const char* key) { return file.Contains(key) && !file.Has(key); };
  if (is_null("attn_logit_softcapping")) {
    config.attention_soft_cap = 0;
  }
  if (is_null("final_logit_softcapping")) {
    config.logit_soft_cap = 0;
  }
  LAMINA_ASSIGN_OR_RETURN(const uint32_t window, json.GetUint("sliding_window"));
  if (json.Has("layer_types")) {
    return ReadLayerWindows(json, window, config);
  }
  SetWindowPattern(window, 2, config);
  return absl::OkStatus();
}

absl::Status ReadGemma2Gguf(const GgufFile& file, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGemmaGguf(file, "gemma2", config));
  config.norm_places = NormPlaces::kBoth;
  config.attention_soft_cap = 50.0f;
  config.logit_soft_cap = 30.0f;
  LAMINA_RETURN_IF_ERROR(
      ReadFactor(file, "gemma2.attn_logit_softcapping", config.attention_soft_cap));
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, "gemma2.final_logit_softcapping", config.logit_soft_cap));
  LAMINA_RETURN_IF_ERROR(ReadWindowPattern(
      file, "gemma2", config.window != 0 ? config.window : 4096, /*period=*/2, config));
  SetGgufScale(/*layers_of_27b=*/46, config);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGemmaJson(const JsonConfig& file, ModelConfig& config) {
  const JsonConfig json = file.WithDefaults(R"({"head_dim": 256, "tie_word_embeddings": true})");
  LAMINA_ASSIGN_OR_RETURN(const bool both_ways, json.GetBool("use_bidirectional_attention", false));
  if (both_ways) {
    return absl::UnimplementedError(
        "config.json: use_bidirectional_attention is not supported: models that have it, as "
        "EmbeddingGemma, do not generate text");
  }
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.attention_bias, json.GetBool("attention_bias", false));
  // Gemma 1's files say "gelu" and mean the tanh form, as its own code has it.
  LAMINA_ASSIGN_OR_RETURN(config.activation,
                          json.GetString("hidden_activation", "gelu_pytorch_tanh"));
  config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  return absl::OkStatus();
}

absl::Status ReadGemmaCaps(const JsonConfig& json, ModelConfig& config) {
  config.norm_places = NormPlaces::kBoth;
  LAMINA_ASSIGN_OR_RETURN(config.attention_soft_cap, json.GetFloat("attn_logit_softcapping", 0.0f));
  LAMINA_ASSIGN_OR_RETURN(config.logit_soft_cap, json.GetFloat("final_logit_softcapping", 0.0f));
  LAMINA_ASSIGN_OR_RETURN(const float scalar, json.GetFloat("query_pre_attn_scalar"));
  if (!(scalar > 0.0f) || config.attention_soft_cap < 0.0f || config.logit_soft_cap < 0.0f) {
    return absl::InvalidArgumentError(
        "config.json: query_pre_attn_scalar and soft caps should be positive");
  }
  config.attention_scale = 1.0f / std::sqrt(scalar);
  return absl::OkStatus();
}

absl::Status ReadGemmaGguf(const GgufFile& file, const std::string& prefix, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(file, prefix, config));
  config.activation = "gelu_pytorch_tanh";
  config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  return absl::OkStatus();
}

void SetGgufScale(uint32_t layers_of_27b, ModelConfig& config) {
  if (config.layers == layers_of_27b && config.query_heads != 0) {
    config.attention_scale =
        1.0f / std::sqrt(static_cast<float>(config.width / config.query_heads));
  }
}

absl::StatusOr<Graph> BuildGemma(const ModelConfig& config, const WeightSource& weights) {
  DecoderNames names = NamesFor(config, weights);
  const bool hugging_face = config.format == FileFormat::kHuggingFace;
  if (hugging_face && config.norm_places == NormPlaces::kBoth) {
    names.attention_norm_behind = "post_attention_layernorm.weight";
    names.mlp_norm = "pre_feedforward_layernorm.weight";
    names.mlp_norm_behind = "post_feedforward_layernorm.weight";
  }
  return BuildGatedDecoder(config, names, weights,
                           {.qkv_bias = config.attention_bias,
                            .output_bias = config.attention_bias,
                            .norm_offset = hugging_face ? 1.0f : 0.0f});
}

namespace {

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  return ReadGemmaGguf(file, "gemma", config);
}

}  // namespace

const Architecture& GemmaArchitecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "gemma",
                       .hugging_face_types = {"gemma"},
                       .gguf_name = "gemma",
                       .models = "Gemma 2B, 7B",
                       .features = "scaled embedding, GeGLU",
                       .read_json = ReadGemmaJson,
                       .read_gguf = ReadGguf,
                       .build = BuildGemma};
  return *kArchitecture;
}

const Architecture& Gemma2Architecture() {
  static const Architecture* const kArchitecture = new Architecture{
      .name = "gemma2",
      .hugging_face_types = {"gemma2"},
      .gguf_name = "gemma2",
      .models = "Gemma 2 2B to 27B",
      .features = "scaled embedding, GeGLU, norms around the sublayers, soft caps, windows",
      .read_json = ReadGemma2Json,
      .read_gguf = ReadGemma2Gguf,
      .build = BuildGemma};
  return *kArchitecture;
}

}  // namespace lamina::model
