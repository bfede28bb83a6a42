// SPDX-License-Identifier: Apache-2.0
//
// ModelShape: what the cost model has to know of a model, and the bytes and operations that follow.
//
// Notation: B rows (tokens of a step), l context, E experts, k of them for a token.
// Weights and K and V are bf16: two bytes an element.
//
// Threading: pure.

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/model_config.h"

namespace lamina::cost {

inline constexpr double kElementBytes = 2;

// Where every layer has a window, slots of so many tokens behind it come free at a time
// (core::SchedulerOptions::release_tokens).
inline constexpr double kReleasedTokens = 256;

// Whether this software serves it, and why not.
struct Runs {
  bool yes = false;
  std::string why;
};

struct ModelShape {
  std::string name;
  std::string architecture;  // As config.json's model_type, or ModelConfig::architecture.
  uint32_t layers = 0;
  uint32_t width = 0;  // d
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t hidden = 0;        // Columns of the MLP; with experts, of one expert.
  uint32_t mlp_matrices = 3;  // gate, up and down; 2 without a gate.
  uint32_t experts = 1;
  uint32_t experts_per_token = 1;
  uint32_t vocabulary = 0;
  bool tied_embeddings = false;
  uint32_t window = 0;         // Tokens that a layer with a sliding window attends to.
  uint32_t window_layers = 0;  // How many layers have it; the others attend to everything.
  uint32_t positions_max = 0;
  Runs runs;
  std::string source;  // Where the shape comes from.

  double AttentionWeights() const;  // q, k, v and output projections of a layer; elements.
  double ExpertWeights() const;     // The MLP of a layer, or one expert of it; elements.
  double LayerWeights() const;      // All of a layer, with every expert and the router.
  double HeadWeights() const;       // The LM head.
  double Parameters() const;
  double WeightBytes() const;

  // Elements of a layer's weights that a step of `rows` reads: of E experts, E(1 - (1 - k/E)^B) are
  // chosen by some row if rows choose evenly.
  double LayerWeightsRead(double rows) const;
  // Operations of a layer's matrices for one row: k experts.
  double LayerFlopsPerRow() const;

  double KvBytesPerTokenLayer() const;
  double KvBytesPerToken() const;
  // Tokens that a row with `context` attends to, summed over layers: min(context, window) where the
  // layer has a window.
  double AttendedTokens(double context) const;
  // Tokens whose K and V are held for a sequence: all, or where every layer has a window those that
  // it reaches, and up to a block behind it.
  double TokensHeld(double context) const;

  // What one row puts to memory nodes in a layer (q, k, v), and gets back.
  double RowBytesOut() const;
  double RowBytesBack() const;
};

// The shape of a model that this software opened; it runs.
ModelShape ShapeOf(const model::ModelConfig& config);

// The shape in the text of a config.json, weights or none: llama, mistral, mixtral, qwen2, qwen3,
// qwen3_moe, gpt_oss and opt. Architectures that this software cannot serve say so in `runs`.
//
// Errors: kInvalidArgument  not a JSON object, a missing or impossible value; names the key.
//         kUnimplemented    another model_type; lists the known ones.
absl::StatusOr<ModelShape> ShapeFromConfigJson(absl::string_view text, absl::string_view name);

// Checks that sizes are positive, agree with each other and are below what any model has.
// Errors: kInvalidArgument naming the value and the bound.
absl::Status CheckShape(const ModelShape& shape);

}  // namespace lamina::cost
