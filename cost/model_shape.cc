// SPDX-License-Identifier: Apache-2.0
#include "cost/model_shape.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "cost/estimate.h"

namespace lamina::cost {

double ModelShape::AttentionWeights() const {
  const double heads = Real(query_heads) * head_dim;
  const double kv = Real(kv_heads) * head_dim;
  return width * (2 * heads + 2 * kv);
}

double ModelShape::ExpertWeights() const { return Real(mlp_matrices) * width * hidden; }

double ModelShape::LayerWeights() const {
  const double router = experts > 1 ? Real(width) * experts : 0;
  return AttentionWeights() + router + experts * ExpertWeights();
}

double ModelShape::HeadWeights() const { return Real(vocabulary) * width; }

double ModelShape::Parameters() const {
  return layers * LayerWeights() + HeadWeights() * (tied_embeddings ? 1 : 2);
}

double ModelShape::WeightBytes() const { return kElementBytes * Parameters(); }

double ModelShape::LayerWeightsRead(double rows) const {
  if (experts <= 1) {
    return LayerWeights();
  }
  const double untouched = std::pow(1 - Real(experts_per_token) / experts, rows);
  const double router = Real(width) * experts;
  return AttentionWeights() + router + experts * (1 - untouched) * ExpertWeights();
}

double ModelShape::LayerFlopsPerRow() const {
  const double router = experts > 1 ? Real(width) * experts : 0;
  return 2 * (AttentionWeights() + router + experts_per_token * ExpertWeights());
}

double ModelShape::KvBytesPerTokenLayer() const { return 2 * kElementBytes * kv_heads * head_dim; }

double ModelShape::KvBytesPerToken() const { return layers * KvBytesPerTokenLayer(); }

double ModelShape::AttendedTokens(double context) const {
  const double windowed = window > 0 ? window_layers : 0;
  return windowed * std::min(context, Real(window)) + (layers - windowed) * context;
}

double ModelShape::TokensHeld(double context) const {
  return window > 0 && window_layers == layers ? std::min(context, window + kReleasedTokens)
                                               : context;
}

double ModelShape::RowBytesOut() const {
  return kElementBytes * head_dim * (Real(query_heads) + 2.0 * kv_heads);
}

double ModelShape::RowBytesBack() const { return kElementBytes * head_dim * Real(query_heads); }

ModelShape ShapeOf(const model::ModelConfig& config) {
  ModelShape shape;
  shape.name = config.name;
  shape.architecture = config.architecture;
  shape.layers = config.layers;
  shape.width = config.width;
  shape.query_heads = config.query_heads;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.hidden = config.ffn_width;
  shape.mlp_matrices = config.architecture == "opt" || config.architecture == "gpt_neox" ? 2 : 3;
  shape.vocabulary = config.vocabulary;
  shape.tied_embeddings = config.tied_embeddings;
  shape.window = config.window;
  shape.window_layers = config.window > 0 ? config.WindowLayers() : 0;
  shape.experts = std::max(1u, config.experts);
  shape.experts_per_token = std::max(1u, config.experts_per_token);
  shape.positions_max = config.positions_max;
  shape.runs = {.yes = true, .why = "its files were opened"};
  shape.source = "its files";
  return shape;
}

absl::Status CheckShape(const ModelShape& shape) {
  struct Bound {
    absl::string_view key;
    uint32_t value;
    uint32_t most;
  };
  const Bound bounds[] = {{"layers", shape.layers, 1024},
                          {"width", shape.width, 1u << 18},
                          {"query_heads", shape.query_heads, 4096},
                          {"kv_heads", shape.kv_heads, 4096},
                          {"head_dim", shape.head_dim, 1024},
                          {"hidden", shape.hidden, 1u << 20},
                          {"mlp_matrices", shape.mlp_matrices, 3},
                          {"experts", shape.experts, 4096},
                          {"experts_per_token", shape.experts_per_token, shape.experts},
                          {"vocabulary", shape.vocabulary, 1u << 24},
                          {"positions_max", shape.positions_max, 1u << 28}};
  for (const Bound& bound : bounds) {
    if (bound.value < 1 || bound.value > bound.most) {
      return absl::InvalidArgumentError(absl::StrCat(bound.key, ": ", bound.value,
                                                     " is not in [1, ", bound.most,
                                                     "]; see the model's config.json"));
    }
  }
  if (shape.query_heads % shape.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "query_heads: ", shape.query_heads, " is not a multiple of kv_heads, ", shape.kv_heads));
  }
  if (shape.window_layers > shape.layers || (shape.window == 0) != (shape.window_layers == 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "window_layers: ", shape.window_layers, " with a window of ", shape.window, " and ",
        shape.layers, " layers; give both window and window_layers (at most layers), or neither"));
  }
  return absl::OkStatus();
}

}  // namespace lamina::cost
