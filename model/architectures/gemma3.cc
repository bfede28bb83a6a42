// SPDX-License-Identifier: Apache-2.0
//
// Gemma 3, and the text part of its models of text and images: Gemma 2 without its soft caps, with
// norms of each head of q and k, windows in five of six layers, and another rope base in those.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"
#include "model/architectures/gemma_internal.h"
#include "model/architectures/rope_internal.h"
namespace lamina::model {
namespace {

constexpr uint32_t kPeriod = 6;
constexpr float kWindowBase = 10000.0f;

// Since transformers 5 one set of settings by kind of layer; before, names of their own.
absl::Status ReadRopes(const JsonConfig& json, ModelConfig& config) {
  config.rope.base = 1e6f;
  config.window_rope = RopeConfig{.base = kWindowBase, .rotary_dim = config.head_dim};
  LAMINA_ASSIGN_OR_RETURN(const JsonConfig parameters, json.Section("rope_parameters"));
  if (parameters.HasSections()) {
    LAMINA_ASSIGN_OR_RETURN(const JsonConfig full, parameters.Section("full_attention"));
    LAMINA_RETURN_IF_ERROR(ReadRopeSection(json, full, config, config.rope));
    LAMINA_ASSIGN_OR_RETURN(const JsonConfig windowed, parameters.Section("sliding_attention"));
    return ReadRopeSection(json, windowed, config, *config.window_rope);
  }
  LAMINA_RETURN_IF_ERROR(ReadRope(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.window_rope->base,
                          json.GetFloat("rope_local_base_freq", kWindowBase));
  return absl::OkStatus();
}

absl::Status ReadJson(const JsonConfig& file, ModelConfig& config) {
  // Files of models with images leave out whatever the first model had.
  const JsonConfig json = file.WithDefaults(
      R"({"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
          "head_dim": 256, "query_pre_attn_scalar": 256, "max_position_embeddings": 131072,
          "sliding_window": 4096, "rms_norm_eps": 1e-6})");
  LAMINA_RETURN_IF_ERROR(ReadGemmaJson(json.Without("rope_parameters"), config));
  LAMINA_RETURN_IF_ERROR(ReadRopes(json, config));
  LAMINA_RETURN_IF_ERROR(ReadGemmaCaps(json, config));
  config.head_norms = HeadNorms::kEachHead;
  LAMINA_ASSIGN_OR_RETURN(const uint32_t window, json.GetUint("sliding_window"));
  if (json.Has("layer_types")) {
    return ReadLayerWindows(json, window, config);
  }
  LAMINA_ASSIGN_OR_RETURN(const uint32_t period, json.GetUint("sliding_window_pattern", kPeriod));
  SetWindowPattern(window, std::max(1u, period), config);
  return absl::OkStatus();
}

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  config.rope.base = 1e6f;
  LAMINA_RETURN_IF_ERROR(ReadGemmaGguf(file, "gemma3", config));
  config.norm_places = NormPlaces::kBoth;
  config.head_norms = HeadNorms::kEachHead;
  config.window_rope = RopeConfig{.base = kWindowBase, .rotary_dim = config.head_dim};
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, "gemma3.rope.freq_base_swa", config.window_rope->base));
  LAMINA_RETURN_IF_ERROR(ReadFactor(file, "gemma3.final_logit_softcapping", config.logit_soft_cap));
  if (config.window != 0) {  // Converters leave it out where all layers see everything.
    LAMINA_RETURN_IF_ERROR(ReadWindowPattern(file, "gemma3", config.window, kPeriod, config));
  }
  SetGgufScale(/*layers_of_27b=*/62, config);
  return absl::OkStatus();
}

}  // namespace

const Architecture& Gemma3Architecture() {
  static const Architecture* const kArchitecture = new Architecture{
      .name = "gemma3",
      .hugging_face_types = {"gemma3_text"},
      .types_with_text = {"gemma3"},
      .gguf_name = "gemma3",
      .models = "Gemma 3 270M to 27B",
      .features = "as Gemma 2 without soft caps; norms of q and k, rope by kind of layer",
      .read_json = ReadJson,
      .read_gguf = ReadGguf,
      .build = BuildGemma};
  return *kArchitecture;
}

}  // namespace lamina::model
