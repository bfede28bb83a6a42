// SPDX-License-Identifier: Apache-2.0
//
// ModelConfig: the shape of a model, whatever file it came from.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/sampling_params.h"

namespace lamina::model {

enum class FileFormat : uint8_t { kGguf, kHuggingFace };

enum class RopeScaling : uint8_t { kUnscaled, kLinear, kLlama3, kYarn, kLongRope };

struct RopeConfig {
  float base = 10000.0f;
  uint32_t rotary_dim = 0;
  RopeScaling scaling = RopeScaling::kUnscaled;
  float factor = 1.0f;                 // longrope: positions_max / original_positions
  float low_frequency_factor = 1.0f;   // llama3
  float high_frequency_factor = 4.0f;  // llama3
  uint32_t original_positions = 0;     // llama3, yarn, longrope
  float beta_fast = 32.0f;             // yarn
  float beta_slow = 1.0f;              // yarn
  // yarn: 0 means 0.1 ln(factor) + 1; longrope: sqrt(1 + ln(factor) / ln(original_positions)).
  float attention_factor = 0.0f;
  bool truncate = true;        // yarn: round the ramp's ends to whole dimensions.
  std::vector<float> factors;  // Divisors of each frequency, when the file gives them.
  // longrope: the same, for sequences within original_positions and for longer ones. One of them
  // serves all sequences of a deployment: the long ones where those may be longer than that.
  std::vector<float> short_factors;
  std::vector<float> long_factors;
};

// RMS norms of q and k before they are rotated.
enum class HeadNorms : uint8_t { kAbsent, kEachHead, kAllHeads };

// Where a layer has its norms: before attention and MLP, behind them (before the sum with the
// residual stream), or both.
enum class NormPlaces : uint8_t { kBefore, kBehind, kBoth };

struct ModelConfig {
  FileFormat format = FileFormat::kGguf;
  std::string architecture;  // "llama", "qwen2", ...: Architecture::name.
  std::string name;          // For people: "SmolLM2 135M Instruct".
  uint32_t layers = 0;
  uint32_t width = 0;      // d
  uint32_t ffn_width = 0;  // With experts: of one of them.
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t vocabulary = 0;
  uint32_t positions_max = 0;       // The context the model was made for, with its rope scaling.
  uint32_t window = 0;              // Sliding window, 0 for none.
  uint32_t window_first_layer = 0;  // Layers before it attend to everything (Qwen2).
  float norm_epsilon = 1e-5f;
  bool tied_embeddings = false;
  bool parallel_residual = false;  // GPT-NeoX
  bool attention_bias = false;
  bool mlp_bias = false;
  std::string activation;  // As config.json says: "silu", "gelu", "relu", ...
  // Tokens that each layer attends to, 0 for all: instead of `window` and window_first_layer, where
  // it is not empty. `window` is then the largest.
  std::vector<uint32_t> layer_windows;
  RopeConfig rope;
  // Gemma 3: of the layers with a window, which are neither scaled nor have the base of the others.
  std::optional<RopeConfig> window_rope;
  std::vector<uint32_t> layers_without_rope;  // SmolLM3; ascending.
  HeadNorms head_norms = HeadNorms::kAbsent;
  NormPlaces norm_places = NormPlaces::kBefore;
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;      // Scales what attention and MLP add.
  float attention_scale = 0.0f;     // Scales q.k; 0 means 1 / sqrt(head_dim).
  float attention_soft_cap = 0.0f;  // Caps scores; 0 for none.
  float logit_scale = 1.0f;
  float logit_soft_cap = 0.0f;  // 0 for none.
  uint32_t experts = 0;         // Experts of a layer; 0: a dense model.
  uint32_t experts_per_token = 0;
  bool normalised_routes = true;    // The weights of a token's experts are made to sum to 1.
  std::vector<TokenId> end_tokens;  // Any of these ends a generation.
  // The longest sequence of the deployment; 0: positions_max. It decides longrope's factors.
  uint32_t sequence_tokens_max = 0;

  uint32_t WindowOf(uint32_t layer) const {
    if (!layer_windows.empty()) {
      return layer_windows[layer];
    }
    return layer < window_first_layer ? 0 : window;
  }
  uint32_t WindowLayers() const {
    uint32_t count = 0;
    for (uint32_t layer = 0; layer < layers; ++layer) {
      count += WindowOf(layer) != 0 ? 1 : 0;
    }
    return count;
  }
  // Whether longrope's long factors apply.
  bool LongRope() const {
    return rope.scaling == RopeScaling::kLongRope &&
           (sequence_tokens_max != 0 ? sequence_tokens_max : positions_max) >
               rope.original_positions;
  }
};

}  // namespace lamina::model
