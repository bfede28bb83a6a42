// SPDX-License-Identifier: Apache-2.0
//
// One layer:   h = x + O attention(rope(QKV rms(x)))
//              y = h + D (act(G rms(h)) * U rms(h))

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"
#include "model/architectures/rope_internal.h"

namespace lamina::model {
namespace {

struct Names {
  absl::string_view embedding;
  absl::string_view layer;  // In front of the layer's number.
  absl::string_view attention_norm;
  absl::string_view q, k, v, o;
  absl::string_view mlp_norm;
  absl::string_view gate, up, down;
  absl::string_view final_norm;
  absl::string_view head;
};

constexpr Names kHuggingFaceNames = {
    .embedding = "model.embed_tokens.weight",
    .layer = "model.layers.",
    .attention_norm = "input_layernorm.weight",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .mlp_norm = "post_attention_layernorm.weight",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
    .final_norm = "model.norm.weight",
    .head = "lm_head",
};

constexpr Names kGgufNames = {
    .embedding = "token_embd.weight",
    .layer = "blk.",
    .attention_norm = "attn_norm.weight",
    .q = "attn_q",
    .k = "attn_k",
    .v = "attn_v",
    .o = "attn_output",
    .mlp_norm = "ffn_norm.weight",
    .gate = "ffn_gate",
    .up = "ffn_up",
    .down = "ffn_down",
    .final_norm = "output_norm.weight",
    .head = "output",
};

// Appends layers one after the other; `residual` is the stream between them.
class LayerBuilder {
 public:
  LayerBuilder(const ModelConfig& config, const GatedDecoderOptions& options, const Names& names,
               ActivationKind activation, GraphBuilder& builder)
      : config_(config),
        options_(options),
        names_(names),
        activation_(activation),
        rope_(MakeRope(config, options.rope_layout)),
        builder_(builder) {}

  ValueId Append(uint32_t layer, ValueId residual) {
    builder_.SetScope(LayerPrefix("layers.", layer));
    prefix_ = LayerPrefix(names_.layer, layer);
    residual = AppendAttention(layer, residual);
    return AppendMlp(residual);
  }

 private:
  LinearOp::Part Part(absl::string_view name, uint32_t rows, uint32_t cols, bool bias) {
    return AddPart(builder_, absl::StrCat(prefix_, name), rows, cols, bias);
  }

  NormOp Norm(absl::string_view name) {
    return {.kind = NormKind::kRms,
            .epsilon = config_.norm_epsilon,
            .weight = AddVector(builder_, absl::StrCat(prefix_, name), config_.width)};
  }

  ValueId AppendAttention(uint32_t layer, ValueId residual) {
    const uint32_t width = config_.width;
    const uint32_t q_width = config_.query_heads * config_.head_dim;
    const uint32_t kv_width = config_.kv_heads * config_.head_dim;
    const ValueId normed = builder_.Norm("attention_norm", residual, Norm(names_.attention_norm));
    const ValueId qkv = builder_.Linear("qkv", normed,
                                        {Part(names_.q, q_width, width, options_.qkv_bias),
                                         Part(names_.k, kv_width, width, options_.qkv_bias),
                                         Part(names_.v, kv_width, width, options_.qkv_bias)});
    const ValueId rotated = builder_.Rope("rope", qkv, rope_);
    const ValueId attended =
        builder_.Attention("attention", rotated, MakeAttention(config_, layer));
    const ValueId converted = builder_.Convert("attention_converted", attended);
    const ValueId out = builder_.Linear("attention_output", converted,
                                        {Part(names_.o, width, q_width, options_.output_bias)});
    return builder_.Add("attention_residual", {residual, out});
  }

  ValueId AppendMlp(ValueId residual) {
    const uint32_t width = config_.width;
    const uint32_t ffn = config_.ffn_width;
    const ValueId normed = builder_.Norm("mlp_norm", residual, Norm(names_.mlp_norm));
    const ValueId gate_up = builder_.Linear("gate_up", normed,
                                            {Part(names_.gate, ffn, width, options_.mlp_bias),
                                             Part(names_.up, ffn, width, options_.mlp_bias)});
    const ValueId activated =
        builder_.Activation("activation", gate_up, {.kind = activation_, .gated = true});
    const ValueId out =
        builder_.Linear("down", activated, {Part(names_.down, width, ffn, options_.mlp_bias)});
    return builder_.Add("residual", {residual, out});
  }

  const ModelConfig& config_;
  const GatedDecoderOptions& options_;
  const Names& names_;
  const ActivationKind activation_;
  const RopeOp rope_;
  GraphBuilder& builder_;
  std::string prefix_;
};

}  // namespace

absl::Status ReadGatedDecoder(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadCommon(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.ffn_width, json.GetUint("intermediate_size"));
  LAMINA_ASSIGN_OR_RETURN(config.kv_heads, json.GetUint("num_key_value_heads", config.query_heads));
  LAMINA_ASSIGN_OR_RETURN(config.norm_epsilon, json.GetFloat("rms_norm_eps", 1e-6f));
  LAMINA_ASSIGN_OR_RETURN(config.activation, json.GetString("hidden_act", "silu"));
  LAMINA_ASSIGN_OR_RETURN(config.tied_embeddings, json.GetBool("tie_word_embeddings", false));
  LAMINA_ASSIGN_OR_RETURN(const float partial, json.GetFloat("partial_rotary_factor", 1.0f));
  if (partial != 1.0f) {
    return absl::UnimplementedError("config.json: partial_rotary_factor other than 1");
  }
  config.rope.rotary_dim = config.head_dim;
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

absl::StatusOr<Graph> BuildGatedDecoder(const ModelConfig& config,
                                        const GatedDecoderOptions& options) {
  const Names& names = config.format == FileFormat::kGguf ? kGgufNames : kHuggingFaceNames;
  LAMINA_ASSIGN_OR_RETURN(const ActivationKind activation, ParseActivation(config.activation));
  GraphBuilder builder;
  const WeightId embedding =
      AddMatrix(builder, std::string(names.embedding), config.vocabulary, config.width);
  ValueId residual = builder.Embed("embedding", embedding, config.width);
  LayerBuilder layers(config, options, names, activation, builder);
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    residual = layers.Append(layer, residual);
  }
  builder.SetScope("");
  const ValueId normed =
      builder.Norm("final_norm", residual,
                   {.kind = NormKind::kRms,
                    .epsilon = config.norm_epsilon,
                    .weight = AddVector(builder, std::string(names.final_norm), config.width)});
  const LinearOp::Part head =
      config.tied_embeddings
          ? LinearOp::Part{.weight = embedding}
          : AddPart(builder, std::string(names.head), config.vocabulary, config.width, false);
  const ValueId logits = builder.Linear("lm_head", normed, {head});
  return std::move(builder).Finish(logits);
}

}  // namespace lamina::model
