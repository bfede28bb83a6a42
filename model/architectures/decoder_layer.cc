// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/decoder_layer_internal.h"
#include "model/architectures/rope_internal.h"

namespace lamina::model {

WeightId AddOffsetVector(GraphBuilder& builder, const std::string& name, uint32_t cols,
                         float offset) {
  return builder.AddWeight({.name = name, .rows = 1, .cols = cols, .offset = offset});
}

LinearOp::Part DecoderLayers::Part(const std::string& name, uint32_t rows, uint32_t cols,
                                   bool bias) {
  return AddPart(builder_, Name(name), rows, cols, bias);
}

NormOp DecoderLayers::Norm(const std::string& name) {
  return {.kind = NormKind::kRms,
          .epsilon = config_.norm_epsilon,
          .weight = AddOffsetVector(builder_, Name(name), config_.width, options_.norm_offset)};
}

ValueId DecoderLayers::NormBefore(const char* op, const std::string& name, ValueId residual) {
  return config_.norm_places == NormPlaces::kBehind ? builder_.Convert(op, residual)
                                                    : builder_.Norm(op, residual, Norm(name));
}

ValueId DecoderLayers::AddToResidual(const char* norm, const std::string& name, const char* sum,
                                     ValueId residual, ValueId out) {
  if (config_.norm_places != NormPlaces::kBefore) {
    out = builder_.Norm(norm, out, Norm(name), ValueType::kF32);
  }
  if (config_.residual_scale != 1.0f) {
    out = builder_.Scale(absl::StrCat(sum, "_scaled"), out, config_.residual_scale);
  }
  return builder_.Add(sum, {residual, out});
}

absl::StatusOr<ValueId> DecoderLayers::Append(uint32_t layer, ValueId residual) {
  builder_.SetScope(LayerPrefix("layers.", layer));
  prefix_ = LayerPrefix(names_.layer, layer);
  LAMINA_ASSIGN_OR_RETURN(const ValueId attended, AppendAttention(layer, residual));
  residual = AddToResidual("attention_norm_behind", names_.attention_norm_behind,
                           "attention_residual", residual, attended);
  const ValueId normed = NormBefore("mlp_norm", names_.mlp_norm, residual);
  const ValueId out = config_.experts != 0 ? AppendExperts(normed) : AppendMlp(normed);
  return AddToResidual("mlp_norm_behind", names_.mlp_norm_behind, "residual", residual, out);
}

std::vector<LinearOp::Part> DecoderLayers::QkvParts() {
  const uint32_t q_width = config_.query_heads * config_.head_dim;
  const uint32_t kv_width = config_.kv_heads * config_.head_dim;
  const bool bias = options_.qkv_bias;
  if (options_.fused_qkv) {
    return {Part(names_.qkv, q_width + 2 * kv_width, config_.width, bias)};
  }
  return {Part(names_.q, q_width, config_.width, bias),
          Part(names_.k, kv_width, config_.width, bias),
          Part(names_.v, kv_width, config_.width, bias)};
}

absl::StatusOr<ValueId> DecoderLayers::AppendAttention(uint32_t layer, ValueId residual) {
  const ValueId in = NormBefore("attention_norm", names_.attention_norm, residual);
  ValueId qkv = builder_.Linear("qkv", in, QkvParts());
  if (config_.head_norms != HeadNorms::kAbsent) {
    const bool whole = config_.head_norms == HeadNorms::kAllHeads;
    const uint32_t q_width = (whole ? config_.query_heads : 1) * config_.head_dim;
    const uint32_t k_width = (whole ? config_.kv_heads : 1) * config_.head_dim;
    qkv = builder_.HeadNorm(
        "head_norms", qkv,
        {.epsilon = config_.norm_epsilon,
         .q_weight = AddOffsetVector(builder_, Name(names_.q_norm), q_width, options_.norm_offset),
         .k_weight = AddOffsetVector(builder_, Name(names_.k_norm), k_width, options_.norm_offset),
         .query_heads = config_.query_heads,
         .kv_heads = config_.kv_heads,
         .head_dim = config_.head_dim,
         .whole = whole});
  }
  const ValueId rotated =
      builder_.Rope("rope", qkv, MakeLayerRope(config_, layer, options_.rope_layout));
  AttentionOp attention = MakeAttention(config_, layer);
  if (options_.sinks) {
    const TensorInfo* const info = weights_.Find(Name(names_.sinks));
    if (info == nullptr || info->elements != config_.query_heads) {
      return absl::InvalidArgumentError(absl::StrCat("the model has no tensor \"",
                                                     Name(names_.sinks), "\" of shape [",
                                                     config_.query_heads, "]"));
    }
    attention.descriptor.sinks.resize(config_.query_heads);
    LAMINA_RETURN_IF_ERROR(
        weights_.Read(info->name, 0, absl::MakeSpan(attention.descriptor.sinks)));
  }
  const ValueId attended = builder_.Attention("attention", rotated, std::move(attention));
  const ValueId converted = builder_.Convert("attention_converted", attended);
  return builder_.Linear("attention_output", converted,
                         {Part(names_.o, config_.width, config_.query_heads * config_.head_dim,
                               options_.output_bias)});
}

ValueId DecoderLayers::AppendMlp(ValueId in) {
  const uint32_t width = config_.width;
  const uint32_t ffn = config_.ffn_width;
  const bool bias = options_.mlp_bias;
  std::vector<LinearOp::Part> parts =
      options_.fused_gate_up
          ? std::vector<LinearOp::Part>{Part(names_.gate_up, 2 * ffn, width, bias)}
          : std::vector<LinearOp::Part>{Part(names_.gate, ffn, width, bias),
                                        Part(names_.up, ffn, width, bias)};
  const ValueId gate_up = builder_.Linear("gate_up", in, std::move(parts));
  const ValueId activated =
      builder_.Activation("activation", gate_up, {.kind = activation_, .gated = true});
  return builder_.Linear("down", activated, {Part(names_.down, width, ffn, bias)});
}

ValueId DecoderLayers::AppendExperts(ValueId in) {
  const ValueId scores = builder_.Linear(
      "router", in, {Part(names_.router, config_.experts, config_.width, options_.expert_bias)});
  const ValueId route = builder_.Route(
      "route", scores,
      {.kind = options_.router, .experts = config_.experts, .chosen = config_.experts_per_token});
  ExpertsOp experts{
      .chosen = config_.experts_per_token, .hidden = config_.ffn_width, .kind = activation_};
  for (uint32_t expert = 0; expert < config_.experts; ++expert) {
    experts.experts.push_back(MakeExpert(expert));
  }
  return builder_.Experts("experts", in, route, config_.width, std::move(experts));
}

LinearOp::Part DecoderLayers::ExpertPart(const std::string& name, uint32_t expert, uint32_t rows,
                                         uint32_t cols, uint32_t first, uint32_t step) {
  const bool alone = !names_.experts.empty();
  // Tensors of all experts have no ".weight" behind their names in Hugging Face files.
  const bool bare = !alone && config_.format == FileFormat::kHuggingFace;
  const std::string full =
      alone ? absl::StrCat(prefix_, names_.experts, ".", expert, ".", name) : Name(name);
  const Weight::Stack stack = {.count = alone ? 0 : config_.experts, .index = alone ? 0 : expert};
  const bool transposed = options_.experts_transposed &&
                          config_.format == FileFormat::kHuggingFace &&
                          weights_.Find(full + "_blocks") == nullptr;
  LinearOp::Part part;
  part.weight =
      builder_.AddWeight({.name = bare ? full : full + ".weight",
                          .rows = rows,
                          .cols = cols,
                          .order = transposed ? WeightRows::kTransposed : WeightRows::kAsStored,
                          .first_row = first,
                          .stack = stack,
                          .row_step = step});
  if (options_.expert_bias) {
    part.bias = builder_.AddWeight({.name = full + (bare ? "_bias" : ".bias"),
                                    .rows = 1,
                                    .cols = rows,
                                    .first_row = first,
                                    .stack = stack,
                                    .row_step = step});
  }
  return part;
}

ExpertsOp::Expert DecoderLayers::MakeExpert(uint32_t expert) {
  const uint32_t width = config_.width;
  const uint32_t hidden = config_.ffn_width;
  ExpertsOp::Expert made;
  if (options_.gate_up_take_turns && config_.format == FileFormat::kHuggingFace) {
    made.gate_up = {ExpertPart(names_.gate_up, expert, hidden, width, 0, 2),
                    ExpertPart(names_.gate_up, expert, hidden, width, 1, 2)};
  } else {
    made.gate_up = {ExpertPart(names_.expert_gate, expert, hidden, width),
                    ExpertPart(names_.expert_up, expert, hidden, width)};
  }
  made.down = ExpertPart(names_.expert_down, expert, width, hidden);
  return made;
}

}  // namespace lamina::model
