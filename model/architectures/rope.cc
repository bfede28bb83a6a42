// SPDX-License-Identifier: Apache-2.0
//
// Scalings: linear divides every frequency; llama3 divides the long wavelengths and blends between;
// yarn (arXiv:2309.00071) blends by dimension and scales the result; longrope has divisors for
// each.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/rope_internal.h"

namespace lamina::model {
namespace {

absl::StatusOr<RopeScaling> ParseScaling(const std::string& name) {
  if (name == "default" || name == "none") {
    return RopeScaling::kUnscaled;
  }
  if (name == "linear") {
    return RopeScaling::kLinear;
  }
  if (name == "llama3") {
    return RopeScaling::kLlama3;
  }
  if (name == "yarn") {
    return RopeScaling::kYarn;
  }
  if (name == "longrope" || name == "su") {  // "su" in the first files of Phi-3.
    return RopeScaling::kLongRope;
  }
  return absl::UnimplementedError(absl::StrCat(
      "rope scaling \"", name,
      "\" is not supported; the known ones are default, linear, llama3, yarn and longrope"));
}

// 0.1 m ln(s) + 1, equation 22 of the paper with its m.
double YarnMagnitude(double scale, double m) {
  return scale <= 1.0 ? 1.0 : 0.1 * m * std::log(scale) + 1.0;
}

absl::Status ReadYarn(const JsonConfig& section, uint32_t positions_max, RopeConfig& rope) {
  if (section.Has("factor")) {
    LAMINA_ASSIGN_OR_RETURN(rope.factor, section.GetFloat("factor"));
  } else {
    rope.factor = static_cast<float>(positions_max) /
                  static_cast<float>(std::max(1u, rope.original_positions));
  }
  LAMINA_ASSIGN_OR_RETURN(rope.beta_fast, section.GetFloat("beta_fast", 32.0f));
  LAMINA_ASSIGN_OR_RETURN(rope.beta_slow, section.GetFloat("beta_slow", 1.0f));
  LAMINA_ASSIGN_OR_RETURN(rope.truncate, section.GetBool("truncate", true));
  LAMINA_ASSIGN_OR_RETURN(rope.attention_factor, section.GetFloat("attention_factor", 0.0f));
  LAMINA_ASSIGN_OR_RETURN(const float mscale, section.GetFloat("mscale", 0.0f));
  LAMINA_ASSIGN_OR_RETURN(const float mscale_all, section.GetFloat("mscale_all_dim", 0.0f));
  if (rope.attention_factor == 0.0f && mscale != 0.0f && mscale_all != 0.0f) {
    rope.attention_factor = static_cast<float>(YarnMagnitude(rope.factor, mscale) /
                                               YarnMagnitude(rope.factor, mscale_all));
  }
  return absl::OkStatus();
}

// Many a config.json has the length from before yarn, since people add yarn by hand: then the
// length is what the original one is stretched to, as in vLLM.
void StretchPositions(ModelConfig& config) {
  if (config.rope.scaling != RopeScaling::kYarn) {
    return;
  }
  const double stretched = double{config.rope.factor} * config.rope.original_positions;
  if (stretched > config.positions_max) {
    // A number over 32 bits becomes one that CheckConfig() refuses.
    config.positions_max =
        static_cast<uint32_t>(std::min<double>(stretched, std::numeric_limits<uint32_t>::max()));
  }
}

absl::Status ReadLongRope(const JsonConfig& section, uint32_t positions_max, RopeConfig& rope) {
  LAMINA_ASSIGN_OR_RETURN(rope.short_factors, section.GetFloats("short_factor"));
  LAMINA_ASSIGN_OR_RETURN(rope.long_factors, section.GetFloats("long_factor"));
  LAMINA_ASSIGN_OR_RETURN(
      rope.factor,
      section.GetFloat("factor", static_cast<float>(positions_max) /
                                     static_cast<float>(std::max(1u, rope.original_positions))));
  LAMINA_ASSIGN_OR_RETURN(rope.attention_factor, section.GetFloat("attention_factor", 0.0f));
  return absl::OkStatus();
}

// How longrope's magnitude grows with the ratio of contexts (arXiv:2402.13753).
double LongRopeMagnitude(const RopeConfig& rope) {
  if (rope.factor <= 1.0f) {
    return 1.0;
  }
  return std::sqrt(1.0 + std::log(double{rope.factor}) /
                             std::log(static_cast<double>(rope.original_positions)));
}

absl::Status ReadFactors(const GgufFile& file, absl::string_view name, uint32_t rotary_dim,
                         std::vector<float>& factors) {
  const TensorInfo* info = file.Find(name);
  if (info == nullptr) {
    return absl::OkStatus();
  }
  if (info->elements != rotary_dim / 2) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\" has ", info->elements,
                                                   " elements; ", rotary_dim / 2,
                                                   " are needed, half the rotary dimensions"));
  }
  factors.resize(info->elements);
  return file.Read(info->name, 0, absl::MakeSpan(factors));
}

// Files with factors for short and for long sequences are longrope's, whatever else they say.
absl::Status ReadLongRope(const GgufFile& file, const std::string& key, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  LAMINA_RETURN_IF_ERROR(
      ReadFactors(file, "rope_factors_short.weight", rope.rotary_dim, rope.short_factors));
  LAMINA_RETURN_IF_ERROR(
      ReadFactors(file, "rope_factors_long.weight", rope.rotary_dim, rope.long_factors));
  if (rope.short_factors.empty() && rope.long_factors.empty()) {
    return absl::OkStatus();
  }
  rope.scaling = RopeScaling::kLongRope;
  rope.factor = static_cast<float>(config.positions_max) /
                static_cast<float>(std::max(1u, rope.original_positions));
  rope.attention_factor = 1.0f;
  return ReadFactor(file, key + "scaling.attn_factor", rope.attention_factor);
}

std::vector<float> PlainFrequencies(const RopeConfig& rope) {
  std::vector<float> frequencies(rope.rotary_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    frequencies[i] = 1.0f / std::pow(rope.base, exponent);
  }
  return frequencies;
}

void ScaleLlama3(const RopeConfig& rope, std::vector<float>& frequencies) {
  const auto positions = static_cast<float>(rope.original_positions);
  const float low_wavelength = positions / rope.low_frequency_factor;
  const float high_wavelength = positions / rope.high_frequency_factor;
  for (float& frequency : frequencies) {
    const float wavelength = static_cast<float>(2.0 * std::numbers::pi) / frequency;
    if (wavelength > low_wavelength) {
      frequency /= rope.factor;
    } else if (wavelength >= high_wavelength) {
      const float smooth = (positions / wavelength - rope.low_frequency_factor) /
                           (rope.high_frequency_factor - rope.low_frequency_factor);
      frequency = (1.0f - smooth) * frequency / rope.factor + smooth * frequency;
    }
  }
}

void ScaleLongRope(const RopeConfig& rope, bool is_long, std::vector<float>& frequencies) {
  const std::vector<float>& factors = is_long ? rope.long_factors : rope.short_factors;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    frequencies[i] = 1.0f / (factors[i] * std::pow(rope.base, exponent));
  }
}

// The dimension whose wavelength fits `rotations` times into the original context.
double YarnDimension(const RopeConfig& rope, double rotations) {
  return rope.rotary_dim *
         std::log(rope.original_positions / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(double{rope.base}));
}

void ScaleYarn(const RopeConfig& rope, std::vector<float>& frequencies) {
  double low = YarnDimension(rope, rope.beta_fast);
  double high = YarnDimension(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.rotary_dim) - 1.0);
  if (low == high) {
    high += 0.001;  // So that the ramp has a slope.
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float keep = 1.0f - ramp;
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    const float stretched = 1.0f / (rope.factor * std::pow(rope.base, exponent));
    frequencies[i] = stretched * (1.0f - keep) + frequencies[i] * keep;
  }
}

}  // namespace

absl::Status ReadRope(const JsonConfig& json, ModelConfig& config) {
  LAMINA_ASSIGN_OR_RETURN(
      const JsonConfig section,
      json.Section(json.Has("rope_scaling") ? "rope_scaling" : "rope_parameters"));
  if (section.HasSections()) {
    return absl::UnimplementedError(
        "config.json: rope settings for each layer type are not supported");
  }
  LAMINA_RETURN_IF_ERROR(ReadRopeSection(json, section, config, config.rope));
  StretchPositions(config);
  return absl::OkStatus();
}

absl::Status ReadRotaryShare(const JsonConfig& json, ModelConfig& config) {
  LAMINA_ASSIGN_OR_RETURN(const JsonConfig section, json.Section("rope_parameters"));
  LAMINA_ASSIGN_OR_RETURN(const float old_share, json.GetFloat("partial_rotary_factor", 1.0f));
  LAMINA_ASSIGN_OR_RETURN(const float share, section.GetFloat("partial_rotary_factor", old_share));
  if (!(share >= 0.0f && share <= 1.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: a rotary share of ", share, " should be in [0, 1]"));
  }
  config.rope.rotary_dim =
      static_cast<uint32_t>(static_cast<float>(config.head_dim) * share);  // Rounded down.
  return absl::OkStatus();
}

absl::Status ReadRopeSection(const JsonConfig& json, const JsonConfig& section,
                             const ModelConfig& config, RopeConfig& rope) {
  LAMINA_ASSIGN_OR_RETURN(const float base, json.GetFloat("rope_theta", rope.base));
  LAMINA_ASSIGN_OR_RETURN(rope.base, section.GetFloat("rope_theta", base));
  LAMINA_ASSIGN_OR_RETURN(const std::string old_name, section.GetString("type", "default"));
  LAMINA_ASSIGN_OR_RETURN(const std::string name, section.GetString("rope_type", old_name));
  LAMINA_ASSIGN_OR_RETURN(rope.scaling, ParseScaling(name));
  LAMINA_ASSIGN_OR_RETURN(
      const uint32_t positions,
      section.GetUint("original_max_position_embeddings", config.positions_max));
  LAMINA_ASSIGN_OR_RETURN(rope.original_positions,
                          json.GetUint("original_max_position_embeddings", positions));
  switch (rope.scaling) {
    case RopeScaling::kUnscaled:
      return absl::OkStatus();
    case RopeScaling::kYarn:
      return ReadYarn(section, config.positions_max, rope);
    case RopeScaling::kLongRope:
      return ReadLongRope(section, config.positions_max, rope);
    case RopeScaling::kLlama3: {
      LAMINA_ASSIGN_OR_RETURN(rope.low_frequency_factor, section.GetFloat("low_freq_factor"));
      LAMINA_ASSIGN_OR_RETURN(rope.high_frequency_factor, section.GetFloat("high_freq_factor"));
      break;
    }
    case RopeScaling::kLinear:
      break;
  }
  LAMINA_ASSIGN_OR_RETURN(rope.factor, section.GetFloat("factor"));
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& file, const std::string& prefix, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  const std::string key = absl::StrCat(prefix, ".rope.");
  rope.rotary_dim = config.head_dim;
  if (file.Has(key + "dimension_count")) {
    LAMINA_ASSIGN_OR_RETURN(const uint64_t dimensions, file.GetUint(key + "dimension_count"));
    rope.rotary_dim = static_cast<uint32_t>(std::min<uint64_t>(dimensions, UINT32_MAX));
  }
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, key + "freq_base", rope.base));
  rope.original_positions = config.positions_max;
  if (file.Has(key + "scaling.type")) {
    LAMINA_ASSIGN_OR_RETURN(const std::string name, file.GetString(key + "scaling.type"));
    LAMINA_ASSIGN_OR_RETURN(rope.scaling, ParseScaling(name));
  } else if (file.Has(key + "scale_linear")) {  // Files of 2023.
    rope.scaling = RopeScaling::kLinear;
    LAMINA_RETURN_IF_ERROR(ReadFactor(file, key + "scale_linear", rope.factor));
  }
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, key + "scaling.factor", rope.factor));
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, key + "scaling.yarn_beta_fast", rope.beta_fast));
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, key + "scaling.yarn_beta_slow", rope.beta_slow));
  if (file.Has(key + "scaling.original_context_length")) {
    LAMINA_ASSIGN_OR_RETURN(const uint64_t positions,
                            file.GetUint(key + "scaling.original_context_length"));
    rope.original_positions = static_cast<uint32_t>(std::min<uint64_t>(positions, UINT32_MAX));
  }
  if (rope.scaling == RopeScaling::kYarn && file.Has(key + "scaling.attn_factor")) {
    // Here a factor on top of yarn's own.
    LAMINA_ASSIGN_OR_RETURN(const double factor, file.GetFloat(key + "scaling.attn_factor"));
    rope.attention_factor = static_cast<float>(factor * YarnMagnitude(rope.factor, 1.0));
  }
  LAMINA_RETURN_IF_ERROR(ReadLongRope(file, key, config));
  if (file.Has(key + "scaling.original_context_length")) {
    StretchPositions(config);
  }
  return ReadFactors(file, "rope_freqs.weight", rope.rotary_dim, rope.factors);
}

RopeOp MakeRope(const ModelConfig& config, RopeLayout layout) {
  const RopeConfig& rope = config.rope;
  RopeOp op;
  op.layout = layout;
  op.rotary_dim = rope.rotary_dim;
  op.heads = config.query_heads + config.kv_heads;
  op.head_dim = config.head_dim;
  op.frequencies = PlainFrequencies(rope);
  switch (rope.scaling) {
    case RopeScaling::kUnscaled:
      break;
    case RopeScaling::kLinear:
      for (float& frequency : op.frequencies) {
        frequency /= rope.factor;
      }
      break;
    case RopeScaling::kLlama3:
      ScaleLlama3(rope, op.frequencies);
      break;
    case RopeScaling::kYarn:
      ScaleYarn(rope, op.frequencies);
      op.magnitude = rope.attention_factor != 0.0f
                         ? rope.attention_factor
                         : static_cast<float>(YarnMagnitude(rope.factor, 1.0));
      break;
    case RopeScaling::kLongRope:
      ScaleLongRope(rope, config.LongRope(), op.frequencies);
      op.magnitude = rope.attention_factor != 0.0f ? rope.attention_factor
                                                   : static_cast<float>(LongRopeMagnitude(rope));
      break;
  }
  for (size_t i = 0; i < rope.factors.size(); ++i) {
    op.frequencies[i] /= rope.factors[i];
  }
  return op;
}

RopeOp MakeLayerRope(const ModelConfig& config, uint32_t layer, RopeLayout layout) {
  ModelConfig own = config;
  if (std::binary_search(config.layers_without_rope.begin(), config.layers_without_rope.end(),
                         layer)) {
    own.rope = RopeConfig();  // It rotates no dimensions.
  } else if (config.window_rope.has_value() && config.WindowOf(layer) != 0) {
    own.rope = *config.window_rope;
  }
  return MakeRope(own, layout);
}

}  // namespace lamina::model
