// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/decoder_layer_internal.h"
#include "model/architectures/gated_decoder_internal.h"
#include "model/architectures/rope_internal.h"

namespace lamina::model {
namespace {

// The scale of embeddings is a number of the checkpoint's type: of one in bf16 it is rounded.
float EmbeddingScale(const ModelConfig& config, const DecoderNames& names,
                     const WeightSource& weights) {
  const TensorInfo* const embedding = weights.Find(names.embedding);
  const bool rounds = config.format == FileFormat::kHuggingFace && embedding != nullptr &&
                      embedding->type == "BF16";
  return rounds ? ToFloat(ToBFloat16(config.embedding_scale)) : config.embedding_scale;
}

}  // namespace

DecoderNames HuggingFaceNames(absl::string_view prefix) {
  return {
      .embedding = absl::StrCat(prefix, "embed_tokens.weight"),
      .layer = absl::StrCat(prefix, "layers."),
      .attention_norm = "input_layernorm.weight",
      .q = "self_attn.q_proj",
      .k = "self_attn.k_proj",
      .v = "self_attn.v_proj",
      .o = "self_attn.o_proj",
      .qkv = "self_attn.qkv_proj",
      .q_norm = "self_attn.q_norm.weight",
      .k_norm = "self_attn.k_norm.weight",
      .sinks = "self_attn.sinks",
      .mlp_norm = "post_attention_layernorm.weight",
      .gate = "mlp.gate_proj",
      .up = "mlp.up_proj",
      .down = "mlp.down_proj",
      .gate_up = "mlp.gate_up_proj",
      .router = "mlp.gate",
      .experts = "mlp.experts",
      .expert_gate = "gate_proj",
      .expert_up = "up_proj",
      .expert_down = "down_proj",
      .final_norm = absl::StrCat(prefix, "norm.weight"),
      .head = "lm_head",
  };
}

DecoderNames GgufNames() {
  return {
      .embedding = "token_embd.weight",
      .layer = "blk.",
      .attention_norm = "attn_norm.weight",
      .attention_norm_behind = "post_attention_norm.weight",
      .q = "attn_q",
      .k = "attn_k",
      .v = "attn_v",
      .o = "attn_output",
      .qkv = "attn_qkv",
      .q_norm = "attn_q_norm.weight",
      .k_norm = "attn_k_norm.weight",
      .sinks = "attn_sinks.weight",
      .mlp_norm = "ffn_norm.weight",
      .mlp_norm_behind = "post_ffw_norm.weight",
      .gate = "ffn_gate",
      .up = "ffn_up",
      .down = "ffn_down",
      .gate_up = "ffn_up",
      .router = "ffn_gate_inp",
      .expert_gate = "ffn_gate_exps",
      .expert_up = "ffn_up_exps",
      .expert_down = "ffn_down_exps",
      .final_norm = "output_norm.weight",
      .head = "output",
  };
}

DecoderNames NamesFor(const ModelConfig& config, const WeightSource& weights) {
  if (config.format == FileFormat::kGguf) {
    return GgufNames();
  }
  // As transformers saves models of text and images: up to its version 4, and since.
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    DecoderNames names = HuggingFaceNames(prefix);
    if (weights.Find(names.embedding) != nullptr) {
      if (weights.Find("language_model.lm_head.weight") != nullptr) {
        names.head = "language_model.lm_head";
      }
      return names;
    }
  }
  return HuggingFaceNames();
}

absl::Status ReadGatedDecoder(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadCommon(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.ffn_width, json.GetUint("intermediate_size"));
  LAMINA_ASSIGN_OR_RETURN(config.kv_heads, json.GetUint("num_key_value_heads", config.query_heads));
  LAMINA_ASSIGN_OR_RETURN(config.norm_epsilon, json.GetFloat("rms_norm_eps", 1e-6f));
  LAMINA_ASSIGN_OR_RETURN(config.activation, json.GetString("hidden_act", "silu"));
  LAMINA_ASSIGN_OR_RETURN(config.tied_embeddings, json.GetBool("tie_word_embeddings", false));
  LAMINA_RETURN_IF_ERROR(ReadRotaryShare(json, config));
  return ReadRope(json, config);
}

absl::Status ReadGatedDecoder(const GgufFile& file, const std::string& prefix,
                              ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadCommon(file, prefix, config));
  LAMINA_ASSIGN_OR_RETURN(const double epsilon,
                          file.GetFloat(prefix + ".attention.layer_norm_rms_epsilon"));
  config.norm_epsilon = static_cast<float>(epsilon);
  config.activation = "silu";
  config.tied_embeddings = file.Find("output.weight") == nullptr;
  return ReadRope(file, prefix, config);
}

absl::StatusOr<Graph> BuildGatedDecoder(const ModelConfig& config, const DecoderNames& names,
                                        const WeightSource& weights,
                                        const GatedDecoderOptions& options) {
  LAMINA_ASSIGN_OR_RETURN(const ActivationKind activation, ParseActivation(config.activation));
  GraphBuilder builder;
  const WeightId embedding = AddMatrix(builder, names.embedding, config.vocabulary, config.width);
  ValueId residual = builder.Embed("embedding", embedding, config.width);
  if (config.embedding_scale != 1.0f) {
    residual = builder.Scale("embedding_scaled", residual, EmbeddingScale(config, names, weights));
  }
  DecoderLayers layers(
      {.config = config, .options = options, .names = names, .activation = activation}, weights,
      builder);
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    LAMINA_ASSIGN_OR_RETURN(residual, layers.Append(layer, residual));
  }
  builder.SetScope("");
  const ValueId normed = builder.Norm(
      "final_norm", residual,
      {.kind = NormKind::kRms,
       .epsilon = config.norm_epsilon,
       .weight = AddOffsetVector(builder, names.final_norm, config.width, options.norm_offset)});
  const LinearOp::Part head =
      config.tied_embeddings ? LinearOp::Part{.weight = embedding}
                             : AddPart(builder, names.head, config.vocabulary, config.width, false);
  const ValueId logits = builder.Linear("lm_head", normed, {head});
  builder.SetLogitShape({.scale = config.logit_scale, .soft_cap = config.logit_soft_cap});
  return std::move(builder).Finish(logits);
}

absl::StatusOr<Graph> BuildGatedDecoder(const ModelConfig& config, const WeightSource& weights,
                                        const GatedDecoderOptions& options) {
  return BuildGatedDecoder(config, NamesFor(config, weights), weights, options);
}

}  // namespace lamina::model
