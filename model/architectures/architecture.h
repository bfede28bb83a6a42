// SPDX-License-Identifier: Apache-2.0
//
// Architecture: how one family of models is read from its files and written as a graph. To add one:
// a file next to llama.cc that defines it, a line in registry.cc, and a case in
// tests/fidelity/make_model_goldens.py.
//
// Threading: pure.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/gguf/gguf_file.h"
#include "model/graph.h"
#include "model/model_config.h"
#include "model/weight_source.h"

namespace lamina::model {

class JsonConfig;

struct Architecture {
  absl::string_view name;                             // ModelConfig::architecture.
  std::vector<absl::string_view> hugging_face_types;  // "model_type" in config.json.
  // Types of models that also take images or sound, whose text part, under "text_config", is of one
  // of hugging_face_types.
  std::vector<absl::string_view> types_with_text;
  absl::string_view gguf_name;  // "general.architecture"; empty when GGUF has none.
  absl::string_view models;  // For docs/models.md: which ones, and what is particular about them.
  absl::string_view features;

  // Fill everything of the config but format, architecture, name and end tokens. They read; what
  // is possible is CheckConfig()'s to say.
  absl::Status (*read_json)(const JsonConfig& json, ModelConfig& config) = nullptr;
  absl::Status (*read_gguf)(const GgufFile& file, ModelConfig& config) = nullptr;

  // Requires: a config that passed CheckConfig(). `weights` is asked only for which tensors exist.
  absl::StatusOr<Graph> (*build)(const ModelConfig& config, const WeightSource& weights) = nullptr;
};

// One for each family of this folder.
const Architecture& GemmaArchitecture();
const Architecture& Gemma2Architecture();
const Architecture& Gemma3Architecture();
const Architecture& GptNeoxArchitecture();
const Architecture& GptOssArchitecture();
const Architecture& GraniteArchitecture();
const Architecture& LlamaArchitecture();
const Architecture& MixtralArchitecture();
const Architecture& Olmo2Architecture();
const Architecture& OlmoeArchitecture();
const Architecture& OptArchitecture();
const Architecture& Phi3Architecture();
const Architecture& Qwen2Architecture();
const Architecture& Qwen3Architecture();
const Architecture& Qwen3MoeArchitecture();
const Architecture& SmolLm3Architecture();

// All of them, by name.
std::vector<const Architecture*> AllArchitectures();

// A family that is known and refused: what of it this software lacks.
struct RefusedArchitecture {
  std::vector<absl::string_view> types;  // In config.json or GGUF files.
  absl::string_view models;
  absl::string_view missing;
};
const std::vector<RefusedArchitecture>& RefusedArchitectures();

// Errors: kUnimplemented, saying what is missing of a refused family, or listing the known ones.
absl::StatusOr<const Architecture*> FindArchitectureForJson(absl::string_view model_type);
absl::StatusOr<const Architecture*> FindArchitectureForGguf(absl::string_view name);

// Checks that sizes are sane and agree with one another, before anything is allocated from them.
// Errors: kInvalidArgument naming the setting; kUnimplemented for a head size that attention does
// not have.
absl::Status CheckConfig(const ModelConfig& config);

}  // namespace lamina::model
