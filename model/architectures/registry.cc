// SPDX-License-Identifier: Apache-2.0
//
// The list of architectures, and the limits on every model's sizes.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"

namespace lamina::model {
namespace {

// Above any model that exists; below what would overflow 32-bit widths (3 heads_max * head_max) or
// make a graph from a damaged file large.
constexpr uint32_t kLayersMax = 1024;
constexpr uint32_t kWidthMax = 1u << 18;
constexpr uint32_t kHeadsMax = 4096;
constexpr uint32_t kExpertsMax = 1024;
constexpr uint32_t kVocabularyMax = 1u << 24;
constexpr uint32_t kPositionsMax = 1u << 28;

absl::Status Unknown(absl::string_view what, absl::string_view name,
                     const std::vector<absl::string_view>& known) {
  for (const RefusedArchitecture& refused : RefusedArchitectures()) {
    for (const absl::string_view type : refused.types) {
      if (type == name) {
        return absl::UnimplementedError(absl::StrCat("architecture \"", name, "\" (", what,
                                                     ") is not supported: ", refused.missing));
      }
    }
  }
  return absl::UnimplementedError(absl::StrCat("architecture \"", name, "\" (", what,
                                               ") is not supported; the known ones are ",
                                               absl::StrJoin(known, ", ")));
}

absl::Status CheckRange(absl::string_view what, uint32_t value, uint32_t max) {
  if (value == 0 || value > max) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's ", what, " is ", value, "; it should be in [1, ", max, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckHeads(const ModelConfig& config) {
  if (config.query_heads % config.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the model has ", config.query_heads,
                                                   " query heads, not a multiple of its ",
                                                   config.kv_heads, " KV heads"));
  }
  if (config.head_dim % 16 != 0 || config.head_dim < 16 || config.head_dim > 256) {
    return absl::UnimplementedError(
        absl::StrCat("head size ", config.head_dim,
                     " is not supported; it should be a multiple of 16 from 16 to 256"));
  }
  return absl::OkStatus();
}

bool IsPositive(float x) { return std::isfinite(x) && x > 0.0f; }

absl::Status CheckRope(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  if (rope.rotary_dim % 2 != 0 || rope.rotary_dim > config.head_dim) {
    return absl::InvalidArgumentError(absl::StrCat(rope.rotary_dim,
                                                   " rotary dimensions should be even and within "
                                                   "the head size of ",
                                                   config.head_dim));
  }
  if (!std::isfinite(rope.base) || rope.base <= 1.0f) {
    return absl::InvalidArgumentError(absl::StrCat("a rope base of ", rope.base, " is impossible"));
  }
  const bool blends = rope.scaling == RopeScaling::kLlama3;
  if (!IsPositive(rope.factor) || !std::isfinite(rope.attention_factor) ||
      rope.attention_factor < 0.0f || !IsPositive(rope.beta_fast) || !IsPositive(rope.beta_slow) ||
      (blends &&
       (!IsPositive(rope.low_frequency_factor) || !IsPositive(rope.high_frequency_factor) ||
        rope.low_frequency_factor == rope.high_frequency_factor)) ||
      (rope.scaling != RopeScaling::kUnscaled && rope.original_positions == 0) ||
      (rope.scaling == RopeScaling::kLongRope && rope.original_positions < 2)) {
    return absl::InvalidArgumentError(absl::StrCat("impossible rope scaling: factor ", rope.factor,
                                                   ", original positions ",
                                                   rope.original_positions));
  }
  if (!std::all_of(rope.factors.begin(), rope.factors.end(), IsPositive)) {
    return absl::InvalidArgumentError("a factor in rope_freqs.weight is not a positive number");
  }
  for (const std::vector<float>* factors : {&rope.short_factors, &rope.long_factors}) {
    const size_t needed = rope.scaling == RopeScaling::kLongRope ? rope.rotary_dim / 2 : 0;
    if (factors->size() != needed || !std::all_of(factors->begin(), factors->end(), IsPositive)) {
      return absl::InvalidArgumentError(
          absl::StrCat("longrope has ", factors->size(), " short or long factors; ", needed,
                       " positive ones are needed, half the rotary dimensions"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckExperts(const ModelConfig& config) {
  if (config.experts > kExpertsMax ||
      (config.experts != 0 &&
       (config.experts_per_token == 0 || config.experts_per_token > config.experts))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model has ", config.experts, " experts in a layer, ", config.experts_per_token,
        " of them for a token; there should be at most ", kExpertsMax, ", and 1 to all of them"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<const Architecture*> AllArchitectures() {
  return {&GemmaArchitecture(),   &Gemma2Architecture(),  &Gemma3Architecture(),
          &GptNeoxArchitecture(), &GptOssArchitecture(),  &GraniteArchitecture(),
          &LlamaArchitecture(),   &MixtralArchitecture(), &Olmo2Architecture(),
          &OlmoeArchitecture(),   &OptArchitecture(),     &Phi3Architecture(),
          &Qwen2Architecture(),   &Qwen3Architecture(),   &Qwen3MoeArchitecture(),
          &SmolLm3Architecture()};
}

absl::StatusOr<const Architecture*> FindArchitectureForJson(absl::string_view model_type) {
  std::vector<absl::string_view> known;
  for (const Architecture* architecture : AllArchitectures()) {
    for (const auto* types : {&architecture->hugging_face_types, &architecture->types_with_text}) {
      for (const absl::string_view type : *types) {
        if (type == model_type) {
          return architecture;
        }
        known.push_back(type);
      }
    }
  }
  return Unknown("model_type in config.json", model_type, known);
}

absl::StatusOr<const Architecture*> FindArchitectureForGguf(absl::string_view name) {
  std::vector<absl::string_view> known;
  for (const Architecture* architecture : AllArchitectures()) {
    if (architecture->gguf_name.empty()) {
      continue;
    }
    if (architecture->gguf_name == name) {
      return architecture;
    }
    known.push_back(architecture->gguf_name);
  }
  return Unknown("general.architecture in the GGUF file", name, known);
}

absl::Status CheckConfig(const ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(CheckRange("number of layers", config.layers, kLayersMax));
  LAMINA_RETURN_IF_ERROR(CheckRange("width", config.width, kWidthMax));
  LAMINA_RETURN_IF_ERROR(CheckRange("feed-forward width", config.ffn_width, 4 * kWidthMax));
  LAMINA_RETURN_IF_ERROR(CheckRange("number of query heads", config.query_heads, kHeadsMax));
  LAMINA_RETURN_IF_ERROR(CheckRange("number of KV heads", config.kv_heads, kHeadsMax));
  LAMINA_RETURN_IF_ERROR(CheckRange("vocabulary", config.vocabulary, kVocabularyMax));
  LAMINA_RETURN_IF_ERROR(CheckRange("number of positions", config.positions_max, kPositionsMax));
  LAMINA_RETURN_IF_ERROR(CheckHeads(config));
  if (!std::isfinite(config.norm_epsilon) || config.norm_epsilon < 0.0f) {
    return absl::InvalidArgumentError(
        absl::StrCat("a norm epsilon of ", config.norm_epsilon, " is impossible"));
  }
  LAMINA_RETURN_IF_ERROR(CheckExperts(config));
  if (config.window_rope.has_value()) {
    ModelConfig windowed = config;
    windowed.rope = *config.window_rope;
    LAMINA_RETURN_IF_ERROR(CheckRope(windowed));
  }
  return CheckRope(config);
}

}  // namespace lamina::model
