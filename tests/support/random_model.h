// SPDX-License-Identifier: Apache-2.0
//
// Random models of every architecture, small enough to make in a test: the same weights here and in
// tests/fidelity/make_model_goldens.py, which runs them in transformers.
//
// A weight's value follows from the seed, the tensor's Hugging Face name and the element's index:
//
//   key   = fnv1a64(name) ^ seed
//   bits  = mix(key + (index + 1) * 0x9e3779b97f4a7c15)        (mix: the finaliser of splitmix64)
//   k     = (bits >> 56) - 128                                  in [-128, 127]
//   value = k / 128 * 2^e            with e by the tensor's kind, see ScaleExponent() in the .cc
//         = 1 + floor(k / 16) / 32   for the weights of norms
//
// so all values are exact in f32, f16 and bf16.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina::test_support {

struct RandomModelSpec {
  // llama, mistral, qwen2, opt, gpt_neox, and those of random_decoders.cc.
  std::string model_type = "llama";
  uint64_t seed = 1;
  uint32_t layers = 2;
  uint32_t width = 64;
  uint32_t ffn_width = 128;
  uint32_t query_heads = 4;
  uint32_t kv_heads = 4;
  uint32_t head_dim = 16;
  uint32_t vocabulary = 320;  // From 258 on, a byte-level tokenizer is written too.
  uint32_t positions_max = 512;
  bool tied = false;
  bool attention_bias = false;  // llama, opt (all linear layers), gpt_neox
  bool mlp_bias = false;        // llama
  std::string activation = "silu";
  uint32_t window = 0;              // mistral, qwen2
  uint32_t window_first_layer = 0;  // qwen2
  bool parallel_residual = true;    // gpt_neox
  float rotary_share = 1.0f;        // gpt_neox
  float rope_theta = 10000.0f;
  // Members of rope_parameters besides rope_theta, as JSON:
  // "\"rope_type\":\"linear\",\"factor\":2".
  std::string rope_scaling;
  // Write rope_scaling, rope_theta and rotary_pct as transformers 4 did.
  bool old_config = false;
  // Those of random_decoders.cc alone:
  uint32_t experts = 0;
  uint32_t experts_per_token = 0;
  std::string extra;  // More members of config.json.
  // GGUF files of it: can they say what it is, and settings under the architecture's name.
  bool gguf = true;
  std::vector<std::pair<std::string, float>> gguf_floats;
};

struct RandomTensor {
  std::string name;
  std::vector<uint64_t> shape;
};

// Names and shapes, as transformers saves them.
std::vector<RandomTensor> RandomTensors(const RandomModelSpec& spec);

std::vector<float> RandomValues(const RandomTensor& tensor, uint64_t seed);
// As the family stores them: Gemma's norms less one, gpt-oss' experts exact in MXFP4.
std::vector<float> RandomValues(const RandomModelSpec& spec, const RandomTensor& tensor);

// Rows of q or k as converters to GGUF order them for interleaved rope.
std::vector<float> InterleaveForGguf(const std::vector<float>& values, uint64_t heads,
                                     uint64_t head_dim);

// The content of config.json.
std::string RandomConfig(const RandomModelSpec& spec);

// Writes config.json, model.safetensors (type "F32" or "BF16", or "MXFP4": that for gpt-oss'
// experts, and BF16) and, for large enough vocabularies,
// tokenizer.json into an existing directory.
absl::Status WriteRandomModel(const RandomModelSpec& spec, const std::string& directory,
                              absl::string_view type = "F32");

// Writes such a model as one GGUF file; `type` of the matrices is "F32" or "Q8_0". llama, mistral,
// qwen2 without a window and gpt_neox, none with scaled rope.
absl::Status WriteRandomGguf(const RandomModelSpec& spec, const std::string& path,
                             absl::string_view type = "F32");

}  // namespace lamina::test_support
