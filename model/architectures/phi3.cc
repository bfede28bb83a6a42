// SPDX-License-Identifier: Apache-2.0
//
// Phi-3, Phi-3.5 and Phi-4: LLaMA's decoder with q, k and v in one tensor, gate and up in one,
// rotary positions on part of each head in some, divisors of the angles for long sequences
// (longrope) in others, and a sliding window in a few.

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"

namespace lamina::model {
namespace {

absl::Status ReadJson(const JsonConfig& json, ModelConfig& config) {
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.norm_epsilon, json.GetFloat("rms_norm_eps", 1e-5f));
  LAMINA_ASSIGN_OR_RETURN(config.window, json.GetUint("sliding_window", 0));
  return absl::OkStatus();
}

absl::Status ReadGguf(const GgufFile& file, ModelConfig& config) {
  return ReadGatedDecoder(file, "phi3", config);
}

absl::StatusOr<Graph> Build(const ModelConfig& config, const WeightSource& weights) {
  return BuildGatedDecoder(config, weights, {.fused_qkv = true, .fused_gate_up = true});
}

}  // namespace

const Architecture& Phi3Architecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "phi3",
                       .hugging_face_types = {"phi3"},
                       .gguf_name = "phi3",
                       .models = "Phi-3 mini and medium, Phi-3.5-mini, Phi-4, Phi-4-mini",
                       .features = "fused projections, partial rotary positions, longrope, windows",
                       .read_json = ReadJson,
                       .read_gguf = ReadGguf,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
