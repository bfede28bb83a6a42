// SPDX-License-Identifier: Apache-2.0
//
// Settings and graph parts that more than one architecture has.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/common_internal.h"

namespace lamina::model {
namespace {

// A number over 32 bits becomes one that CheckConfig() refuses.
absl::Status ReadUint(const GgufFile& file, const std::string& key, uint32_t& value) {
  LAMINA_ASSIGN_OR_RETURN(const uint64_t number, file.GetUint(key));
  value = static_cast<uint32_t>(std::min<uint64_t>(number, UINT32_MAX));
  return absl::OkStatus();
}

absl::Status ReadUintOr(const GgufFile& file, const std::string& key, uint32_t otherwise,
                        uint32_t& value) {
  value = otherwise;
  return file.Has(key) ? ReadUint(file, key, value) : absl::OkStatus();
}

// Layers that are listed before CheckConfig() has seen their number; more are refused there.
constexpr uint32_t kListedLayersMax = 1024;

void SetLayerWindows(std::vector<uint32_t> windows, ModelConfig& config) {
  config.window = windows.empty() ? 0 : *std::max_element(windows.begin(), windows.end());
  config.layer_windows = std::move(windows);
}

}  // namespace

absl::Status ReadCommon(const JsonConfig& json, ModelConfig& config) {
  LAMINA_ASSIGN_OR_RETURN(config.layers, json.GetUint("num_hidden_layers"));
  LAMINA_ASSIGN_OR_RETURN(config.width, json.GetUint("hidden_size"));
  LAMINA_ASSIGN_OR_RETURN(config.query_heads, json.GetUint("num_attention_heads"));
  LAMINA_ASSIGN_OR_RETURN(config.vocabulary, json.GetUint("vocab_size"));
  LAMINA_ASSIGN_OR_RETURN(config.positions_max, json.GetUint("max_position_embeddings"));
  if (config.query_heads == 0 ||
      (config.width % config.query_heads != 0 && !json.Has("head_dim"))) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: hidden_size ", config.width,
                                                   " is not a multiple of num_attention_heads ",
                                                   config.query_heads));
  }
  LAMINA_ASSIGN_OR_RETURN(config.head_dim,
                          json.GetUint("head_dim", config.width / config.query_heads));
  return absl::OkStatus();
}

absl::Status ReadCommon(const GgufFile& file, const std::string& prefix, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadUint(file, prefix + ".block_count", config.layers));
  LAMINA_RETURN_IF_ERROR(ReadUint(file, prefix + ".embedding_length", config.width));
  LAMINA_RETURN_IF_ERROR(ReadUint(file, prefix + ".feed_forward_length", config.ffn_width));
  LAMINA_RETURN_IF_ERROR(ReadUint(file, prefix + ".context_length", config.positions_max));
  LAMINA_RETURN_IF_ERROR(ReadUint(file, prefix + ".attention.head_count", config.query_heads));
  LAMINA_RETURN_IF_ERROR(
      ReadUintOr(file, prefix + ".attention.head_count_kv", config.query_heads, config.kv_heads));
  LAMINA_RETURN_IF_ERROR(ReadUintOr(file, prefix + ".attention.sliding_window", 0, config.window));
  const std::string key_length = prefix + ".attention.key_length";
  if (config.query_heads == 0 ||
      (config.width % config.query_heads != 0 && !file.Has(key_length))) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, ".embedding_length ", config.width,
                                                   " is not a multiple of ", prefix,
                                                   ".attention.head_count ", config.query_heads));
  }
  LAMINA_RETURN_IF_ERROR(
      ReadUintOr(file, key_length, config.width / config.query_heads, config.head_dim));
  uint32_t value_length = 0;
  LAMINA_RETURN_IF_ERROR(
      ReadUintOr(file, prefix + ".attention.value_length", config.head_dim, value_length));
  if (value_length != config.head_dim) {
    return absl::UnimplementedError(absl::StrCat("keys of ", config.head_dim, " and values of ",
                                                 value_length, " elements are not supported"));
  }
  LAMINA_RETURN_IF_ERROR(ReadUintOr(file, prefix + ".expert_count", 0, config.experts));
  LAMINA_RETURN_IF_ERROR(
      ReadUintOr(file, prefix + ".expert_used_count", 0, config.experts_per_token));
  if (config.experts != 0) {
    LAMINA_RETURN_IF_ERROR(ReadUintOr(file, prefix + ".expert_feed_forward_length",
                                      config.ffn_width, config.ffn_width));
  }
  const TensorInfo* embedding = file.Find("token_embd.weight");
  const uint64_t rows = embedding == nullptr ? 0 : embedding->shape.front();
  return ReadUintOr(file, prefix + ".vocab_size",
                    static_cast<uint32_t>(std::min<uint64_t>(rows, UINT32_MAX)), config.vocabulary);
}

absl::Status ReadLayerWindows(const JsonConfig& json, uint32_t window, ModelConfig& config) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> types, json.GetStrings("layer_types"));
  if (types.size() < config.layers) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: \"layer_types\" names ",
                                                   types.size(), " of ", config.layers, " layers"));
  }
  std::vector<uint32_t> windows;
  for (uint32_t layer = 0; layer < std::min(config.layers, kListedLayersMax); ++layer) {
    if (types[layer] != "sliding_attention" && types[layer] != "full_attention") {
      return absl::UnimplementedError(absl::StrCat(
          "config.json: layer_types[", layer, "] is \"", types[layer],
          "\"; only \"full_attention\" and \"sliding_attention\" keep their state as KV"));
    }
    windows.push_back(types[layer] == "sliding_attention" ? window : 0);
  }
  SetLayerWindows(std::move(windows), config);
  return absl::OkStatus();
}

void SetWindowPattern(uint32_t window, uint32_t period, ModelConfig& config) {
  std::vector<uint32_t> windows(std::min(config.layers, kListedLayersMax), window);
  for (size_t layer = size_t{period} - 1; layer < windows.size(); layer += period) {
    windows[layer] = 0;
  }
  SetLayerWindows(std::move(windows), config);
}

absl::Status ReadWindowPattern(const GgufFile& file, const std::string& prefix, uint32_t window,
                               uint32_t period, ModelConfig& config) {
  const std::string key = prefix + ".attention.sliding_window_pattern";
  const absl::StatusOr<absl::Span<const int64_t>> slides = file.GetInts(key);
  if (!slides.ok()) {
    LAMINA_RETURN_IF_ERROR(ReadUintOr(file, key, period, period));
    SetWindowPattern(window, period, config);
    return absl::OkStatus();
  }
  if (slides->size() < config.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " names ", slides->size(), " of ", config.layers, " layers"));
  }
  std::vector<uint32_t> windows;
  for (uint32_t layer = 0; layer < std::min(config.layers, kListedLayersMax); ++layer) {
    windows.push_back((*slides)[layer] != 0 ? window : 0);
  }
  SetLayerWindows(std::move(windows), config);
  return absl::OkStatus();
}

absl::Status ReadFactor(const GgufFile& file, const std::string& key, float& value) {
  if (file.Has(key)) {
    LAMINA_ASSIGN_OR_RETURN(const double number, file.GetFloat(key));
    value = static_cast<float>(number);
  }
  return absl::OkStatus();
}

absl::StatusOr<ActivationKind> ParseActivation(absl::string_view name) {
  if (name == "relu") {
    return ActivationKind::kRelu;
  }
  if (name == "silu" || name == "swish") {
    return ActivationKind::kSilu;
  }
  if (name == "gelu") {
    return ActivationKind::kGeluErf;
  }
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") {
    return ActivationKind::kGeluTanh;
  }
  if (name == "clamped_swiglu") {
    return ActivationKind::kClampedSwiglu;
  }
  return absl::UnimplementedError(
      absl::StrCat("activation \"", name,
                   "\" is not supported; the known ones are relu, silu, gelu, gelu_new, gelu_fast "
                   "and gelu_pytorch_tanh"));
}

WeightId AddMatrix(GraphBuilder& builder, const std::string& name, uint32_t rows, uint32_t cols) {
  return builder.AddWeight({.name = name, .rows = rows, .cols = cols});
}

WeightId AddVector(GraphBuilder& builder, const std::string& name, uint32_t cols) {
  return AddMatrix(builder, name, 1, cols);
}

LinearOp::Part AddPart(GraphBuilder& builder, const std::string& name, uint32_t rows, uint32_t cols,
                       bool bias) {
  return {.weight = AddMatrix(builder, name + ".weight", rows, cols),
          .bias = bias ? AddVector(builder, name + ".bias", rows) : kNone};
}

NormOp AddLayerNorm(GraphBuilder& builder, const std::string& name, const ModelConfig& config) {
  return {.kind = NormKind::kLayer,
          .epsilon = config.norm_epsilon,
          .weight = AddVector(builder, name + ".weight", config.width),
          .bias = AddVector(builder, name + ".bias", config.width)};
}

AttentionOp MakeAttention(const ModelConfig& config, uint32_t layer) {
  AttentionOp op;
  op.layer = layer;
  op.descriptor.query_heads = config.query_heads;
  op.descriptor.kv_heads = config.kv_heads;
  op.descriptor.head_dim = config.head_dim;
  op.descriptor.scale = config.attention_scale != 0.0f
                            ? config.attention_scale
                            : 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  op.descriptor.window = config.WindowOf(layer);
  op.descriptor.soft_cap = config.attention_soft_cap;
  return op;
}

std::string LayerPrefix(absl::string_view prefix, uint32_t layer) {
  return absl::StrCat(prefix, layer, ".");
}

}  // namespace lamina::model
