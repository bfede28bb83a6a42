// SPDX-License-Identifier: Apache-2.0
//
// OPT: learned positions, LayerNorm, a plain MLP. GGUF has no such architecture.
//
// One layer:   h = x + O attention(QKV norm(x))
//              y = h + W2 act(W1 norm(h))
//
// Not supported: norms behind the blocks (OPT-350m) and embeddings of another width than the model.

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/rope_internal.h"

namespace lamina::model {
namespace {

// The first two rows of the table of positions belong to no position.
constexpr uint32_t kPositionOffset = 2;

absl::Status CheckSupported(const JsonConfig& json, const ModelConfig& config) {
  LAMINA_ASSIGN_OR_RETURN(const bool norm_before, json.GetBool("do_layer_norm_before", true));
  if (!norm_before) {
    return absl::UnimplementedError("config.json: do_layer_norm_before false is not supported");
  }
  LAMINA_ASSIGN_OR_RETURN(const uint32_t embedding_width,
                          json.GetUint("word_embed_proj_dim", config.width));
  if (embedding_width != config.width) {
    return absl::UnimplementedError(absl::StrCat("config.json: word_embed_proj_dim ",
                                                 embedding_width, " other than hidden_size ",
                                                 config.width, " is not supported"));
  }
  LAMINA_ASSIGN_OR_RETURN(const bool affine, json.GetBool("layer_norm_elementwise_affine", true));
  if (!affine) {
    return absl::UnimplementedError(
        "config.json: layer_norm_elementwise_affine false is not supported");
  }
  LAMINA_ASSIGN_OR_RETURN(const bool removed, json.GetBool("_remove_final_layer_norm", false));
  if (removed) {
    return absl::UnimplementedError("config.json: _remove_final_layer_norm true is not supported");
  }
  return absl::OkStatus();
}

absl::Status ReadJson(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadCommon(json, config));
  LAMINA_RETURN_IF_ERROR(CheckSupported(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.ffn_width, json.GetUint("ffn_dim"));
  config.kv_heads = config.query_heads;
  config.norm_epsilon = 1e-5f;
  LAMINA_ASSIGN_OR_RETURN(config.activation, json.GetString("activation_function", "relu"));
  LAMINA_ASSIGN_OR_RETURN(config.tied_embeddings, json.GetBool("tie_word_embeddings", true));
  LAMINA_ASSIGN_OR_RETURN(config.attention_bias, json.GetBool("enable_bias", true));
  config.mlp_bias = config.attention_bias;
  config.rope.rotary_dim = 0;
  return absl::OkStatus();
}

class OptBuilder {
 public:
  OptBuilder(const ModelConfig& config, std::string prefix, ActivationKind activation)
      : config_(config),
        prefix_(std::move(prefix)),
        activation_(activation),
        rope_(MakeRope(config, RopeLayout::kHalves)) {}

  absl::StatusOr<Graph> Build() && {
    const uint32_t width = config_.width;
    const WeightId embedding =
        AddMatrix(builder_, prefix_ + "embed_tokens.weight", config_.vocabulary, width);
    const WeightId positions = builder_.AddWeight({.name = prefix_ + "embed_positions.weight",
                                                   .rows = config_.positions_max,
                                                   .cols = width,
                                                   .first_row = kPositionOffset});
    ValueId residual = builder_.Embed("embedding", embedding, width);
    residual = builder_.PositionEmbed("positions", residual, positions);
    for (uint32_t layer = 0; layer < config_.layers; ++layer) {
      builder_.SetScope(LayerPrefix("layers.", layer));
      residual = AppendAttention(layer, residual);
      residual = AppendMlp(layer, residual);
    }
    builder_.SetScope("");
    const LinearOp::Part head =
        config_.tied_embeddings ? LinearOp::Part{.weight = embedding}
                                : AddPart(builder_, "lm_head", config_.vocabulary, width, false);
    const ValueId hidden = builder_.Norm(
        "final_norm", residual, AddLayerNorm(builder_, prefix_ + "final_layer_norm", config_));
    const ValueId logits = builder_.Linear("lm_head", hidden, {head});
    return std::move(builder_).Finish(logits);
  }

 private:
  std::string Name(uint32_t layer, absl::string_view name) const {
    return absl::StrCat(LayerPrefix(prefix_ + "layers.", layer), name);
  }
  LinearOp::Part Part(uint32_t layer, absl::string_view name, uint32_t rows, uint32_t cols) {
    return AddPart(builder_, Name(layer, name), rows, cols, config_.attention_bias);
  }

  ValueId AppendAttention(uint32_t layer, ValueId residual) {
    const uint32_t width = config_.width;
    const uint32_t q_width = config_.query_heads * config_.head_dim;
    const ValueId normed =
        builder_.Norm("attention_norm", residual,
                      AddLayerNorm(builder_, Name(layer, "self_attn_layer_norm"), config_));
    const ValueId qkv = builder_.Linear("qkv", normed,
                                        {Part(layer, "self_attn.q_proj", q_width, width),
                                         Part(layer, "self_attn.k_proj", q_width, width),
                                         Part(layer, "self_attn.v_proj", q_width, width)});
    // Nothing to rotate: the op only rounds.
    const ValueId rounded = builder_.Rope("rope", qkv, rope_);
    const ValueId attended =
        builder_.Attention("attention", rounded, MakeAttention(config_, layer));
    const ValueId converted = builder_.Convert("attention_converted", attended);
    const ValueId out = builder_.Linear("attention_output", converted,
                                        {Part(layer, "self_attn.out_proj", width, q_width)});
    return builder_.Add("attention_residual", {residual, out});
  }

  ValueId AppendMlp(uint32_t layer, ValueId residual) {
    const uint32_t width = config_.width;
    const ValueId normed = builder_.Norm(
        "mlp_norm", residual, AddLayerNorm(builder_, Name(layer, "final_layer_norm"), config_));
    const ValueId up =
        builder_.Linear("up", normed, {Part(layer, "fc1", config_.ffn_width, width)});
    const ValueId activated = builder_.Activation("activation", up, {.kind = activation_});
    const ValueId out =
        builder_.Linear("down", activated, {Part(layer, "fc2", width, config_.ffn_width)});
    return builder_.Add("residual", {residual, out});
  }

  const ModelConfig& config_;
  const std::string prefix_;
  const ActivationKind activation_;
  const RopeOp rope_;
  GraphBuilder builder_;
};

absl::StatusOr<Graph> Build(const ModelConfig& config, const WeightSource& weights) {
  LAMINA_ASSIGN_OR_RETURN(const ActivationKind activation, ParseActivation(config.activation));
  // The first checkpoints were saved without the outer module's name.
  const bool bare = weights.Find("decoder.embed_tokens.weight") != nullptr;
  return OptBuilder(config, bare ? "decoder." : "model.decoder.", activation).Build();
}

}  // namespace

const Architecture& OptArchitecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "opt",
                       .hugging_face_types = {"opt"},
                       .models = "OPT 125M to 66B, not 350M",
                       .features = "learned positions, biases, no gate",
                       .read_json = ReadJson,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
