// SPDX-License-Identifier: Apache-2.0
//
// GPT-NeoX and Pythia: q, k and v in one tensor, rotary positions on part of each head, and two
// forms of a layer:
//
//   parallel:   y = x + O attention(QKV norm1(x)) + W2 act(W1 norm2(x))
//   otherwise:  h = x + O attention(QKV norm1(x));  y = h + W2 act(W1 norm2(h))
//
// In the parallel form the MLP needs only x, so the splitter can overlap it with the attention.
// Hugging Face files interleave q, k and v by head; GGUF files stack them.

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/rope_internal.h"

namespace lamina::model {
namespace {

struct Names {
  absl::string_view embedding;
  absl::string_view layer;
  absl::string_view attention_norm, qkv, output;
  absl::string_view mlp_norm, up, down;
  absl::string_view final_norm;
};

constexpr Names kHuggingFaceNames = {
    .embedding = "gpt_neox.embed_in.weight",
    .layer = "gpt_neox.layers.",
    .attention_norm = "input_layernorm",
    .qkv = "attention.query_key_value",
    .output = "attention.dense",
    .mlp_norm = "post_attention_layernorm",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
    .final_norm = "gpt_neox.final_layer_norm",
};

constexpr Names kGgufNames = {
    .embedding = "token_embd.weight",
    .layer = "blk.",
    .attention_norm = "attn_norm",
    .qkv = "attn_qkv",
    .output = "attn_output",
    .mlp_norm = "ffn_norm",
    .up = "ffn_up",
    .down = "ffn_down",
    .final_norm = "output_norm",
};

absl::Status ReadJson(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadCommon(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.ffn_width, json.GetUint("intermediate_size"));
  config.kv_heads = config.query_heads;
  LAMINA_ASSIGN_OR_RETURN(config.norm_epsilon, json.GetFloat("layer_norm_eps", 1e-5f));
  LAMINA_ASSIGN_OR_RETURN(config.activation, json.GetString("hidden_act", "gelu"));
  LAMINA_ASSIGN_OR_RETURN(config.tied_embeddings, json.GetBool("tie_word_embeddings", false));
  LAMINA_ASSIGN_OR_RETURN(config.parallel_residual, json.GetBool("use_parallel_residual", true));
  LAMINA_ASSIGN_OR_RETURN(config.attention_bias, json.GetBool("attention_bias", true));
  config.mlp_bias = true;
  LAMINA_ASSIGN_OR_RETURN(config.rope.base, json.GetFloat("rotary_emb_base", 10000.0f));
  LAMINA_RETURN_IF_ERROR(ReadRope(json, config));
  // A quarter of each head where the file does not say.
  LAMINA_ASSIGN_OR_RETURN(const float old_share, json.GetFloat("rotary_pct", 0.25f));
  LAMINA_ASSIGN_OR_RETURN(const JsonConfig rope, json.Section("rope_parameters"));
  LAMINA_ASSIGN_OR_RETURN(const float share, rope.GetFloat("partial_rotary_factor", old_share));
  if (!(share >= 0.0f && share <= 1.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: a rotary share of ", share, " should be in [0, 1]"));
  }
  config.rope.rotary_dim =
      static_cast<uint32_t>(static_cast<float>(config.head_dim) * share);  // Rounded down.
  return absl::OkStatus();
}

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadCommon(file, "gptneox", config));
  LAMINA_ASSIGN_OR_RETURN(const double epsilon,
                          file.GetFloat("gptneox.attention.layer_norm_epsilon"));
  config.norm_epsilon = static_cast<float>(epsilon);
  config.activation = "gelu";
  config.tied_embeddings = file.Find("output.weight") == nullptr;
  config.parallel_residual = true;
  if (file.Has("gptneox.use_parallel_residual")) {
    LAMINA_ASSIGN_OR_RETURN(config.parallel_residual,
                            file.GetBool("gptneox.use_parallel_residual"));
  }
  config.attention_bias = true;
  config.mlp_bias = true;
  return ReadRope(file, "gptneox", config);
}

class NeoxBuilder {
 public:
  NeoxBuilder(const ModelConfig& config, ActivationKind activation, absl::string_view head)
      : config_(config),
        head_(head),
        names_(config.format == FileFormat::kGguf ? kGgufNames : kHuggingFaceNames),
        activation_(activation),
        rope_(MakeRope(config, RopeLayout::kHalves)) {}

  absl::StatusOr<Graph> Build() && {
    const WeightId embedding =
        AddMatrix(builder_, std::string(names_.embedding), config_.vocabulary, config_.width);
    ValueId residual = builder_.Embed("embedding", embedding, config_.width);
    for (uint32_t layer = 0; layer < config_.layers; ++layer) {
      builder_.SetScope(LayerPrefix("layers.", layer));
      prefix_ = LayerPrefix(names_.layer, layer);
      residual = AppendLayer(layer, residual);
    }
    builder_.SetScope("");
    const ValueId normed = builder_.Norm(
        "final_norm", residual, AddLayerNorm(builder_, std::string(names_.final_norm), config_));
    const LinearOp::Part head =
        config_.tied_embeddings
            ? LinearOp::Part{.weight = embedding}
            : AddPart(builder_, head_, config_.vocabulary, config_.width, false);
    const ValueId logits = builder_.Linear("lm_head", normed, {head});
    return std::move(builder_).Finish(logits);
  }

 private:
  std::string Name(absl::string_view name) const { return absl::StrCat(prefix_, name); }

  ValueId AppendLayer(uint32_t layer, ValueId residual) {
    const ValueId attention = AppendAttention(layer, residual);
    if (config_.parallel_residual) {
      // Two sums, so that one value crosses the attention and the MLP can run while it is away.
      const ValueId overlapped = builder_.Add("mlp_residual", {residual, AppendMlp(residual)});
      return builder_.Add("residual", {overlapped, attention});
    }
    const ValueId middle = builder_.Add("attention_residual", {residual, attention});
    return builder_.Add("residual", {middle, AppendMlp(middle)});
  }

  LinearOp::Part QkvPart() {
    const uint32_t rows = 3 * config_.query_heads * config_.head_dim;
    Weight weight = {.name = Name(names_.qkv) + ".weight", .rows = rows, .cols = config_.width};
    Weight bias = {.name = Name(names_.qkv) + ".bias", .rows = 1, .cols = rows};
    if (config_.format == FileFormat::kHuggingFace) {
      for (Weight* interleaved : {&weight, &bias}) {
        interleaved->order = WeightRows::kSplitFusedQkv;
        interleaved->heads = config_.query_heads;
      }
    }
    LinearOp::Part part;
    part.weight = builder_.AddWeight(std::move(weight));
    part.bias = config_.attention_bias ? builder_.AddWeight(std::move(bias)) : kNone;
    return part;
  }

  ValueId AppendAttention(uint32_t layer, ValueId residual) {
    const ValueId normed = builder_.Norm(
        "attention_norm", residual, AddLayerNorm(builder_, Name(names_.attention_norm), config_));
    const ValueId qkv = builder_.Linear("qkv", normed, {QkvPart()});
    const ValueId rotated = builder_.Rope("rope", qkv, rope_);
    const ValueId attended =
        builder_.Attention("attention", rotated, MakeAttention(config_, layer));
    const ValueId converted = builder_.Convert("attention_converted", attended);
    return builder_.Linear(
        "attention_output", converted,
        {AddPart(builder_, Name(names_.output), config_.width,
                 config_.query_heads * config_.head_dim, config_.attention_bias)});
  }

  ValueId AppendMlp(ValueId in) {
    const ValueId normed =
        builder_.Norm("mlp_norm", in, AddLayerNorm(builder_, Name(names_.mlp_norm), config_));
    const ValueId up = builder_.Linear(
        "up", normed,
        {AddPart(builder_, Name(names_.up), config_.ffn_width, config_.width, config_.mlp_bias)});
    const ValueId activated = builder_.Activation("activation", up, {.kind = activation_});
    return builder_.Linear(
        "down", activated,
        {AddPart(builder_, Name(names_.down), config_.width, config_.ffn_width, config_.mlp_bias)});
  }

  const ModelConfig& config_;
  const std::string head_;
  const Names& names_;
  const ActivationKind activation_;
  const RopeOp rope_;
  GraphBuilder builder_;
  std::string prefix_;
};

absl::StatusOr<Graph> Build(const ModelConfig& config, const WeightSource& weights) {
  LAMINA_ASSIGN_OR_RETURN(const ActivationKind activation, ParseActivation(config.activation));
  absl::string_view head = "embed_out";
  if (config.format == FileFormat::kGguf) {
    head = "output";
  } else if (weights.Find("lm_head.weight") != nullptr) {
    head = "lm_head";  // The name that transformers 5 has in memory; some files carry it.
  }
  return NeoxBuilder(config, activation, head).Build();
}

}  // namespace

const Architecture& GptNeoxArchitecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "gpt_neox",
                       .hugging_face_types = {"gpt_neox"},
                       .gguf_name = "gptneox",
                       .models = "Pythia, GPT-NeoX-20B",
                       .features = "MLP overlapped with the attention, partial rotary positions",
                       .read_json = ReadJson,
                       .read_gguf = ReadGguf,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
