// SPDX-License-Identifier: Apache-2.0
//
// ModelConfig: the shape of a model, whatever file it came from.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/sampling_params.h"

namespace lamina::model {

enum class FileFormat : uint8_t { kGguf, kHuggingFace };

enum class RopeScaling : uint8_t { kUnscaled, kLinear, kLlama3, kYarn };

struct RopeConfig {
  float base = 10000.0f;
  uint32_t rotary_dim = 0;
  RopeScaling scaling = RopeScaling::kUnscaled;
  float factor = 1.0f;
  float low_frequency_factor = 1.0f;   // llama3
  float high_frequency_factor = 4.0f;  // llama3
  uint32_t original_positions = 0;     // llama3, yarn
  float beta_fast = 32.0f;             // yarn
  float beta_slow = 1.0f;              // yarn
  float attention_factor = 0.0f;       // yarn; 0 means 0.1 ln(factor) + 1
  bool truncate = true;                // yarn: round the ramp's ends to whole dimensions.
  std::vector<float> factors;          // Divisors of each frequency, when the file gives them.
};

struct ModelConfig {
  FileFormat format = FileFormat::kGguf;
  std::string architecture;  // "llama", "qwen2", "opt", "gpt_neox"
  std::string name;          // For people: "SmolLM2 135M Instruct".
  uint32_t layers = 0;
  uint32_t width = 0;  // d
  uint32_t ffn_width = 0;
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t vocabulary = 0;
  uint32_t positions_max = 0;       // The context the model was trained for.
  uint32_t window = 0;              // Sliding window, 0 for none.
  uint32_t window_first_layer = 0;  // Layers before it attend to everything (Qwen2).
  float norm_epsilon = 1e-5f;
  bool tied_embeddings = false;
  bool parallel_residual = false;  // GPT-NeoX
  bool attention_bias = false;
  bool mlp_bias = false;
  std::string activation;  // As config.json says: "silu", "gelu", "relu", ...
  RopeConfig rope;
  std::vector<TokenId> end_tokens;  // Any of these ends a generation.
};

}  // namespace lamina::model
