// SPDX-License-Identifier: Apache-2.0
//
// Mixtral: LLaMA's decoder with experts instead of the MLP, two of eight for a token, whose weights
// sum to 1. GGUF files of it call themselves "llama" (llama.cc).

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/common_internal.h"
#include "model/architectures/gated_decoder_internal.h"

namespace lamina::model {
namespace {

absl::Status ReadJson(const JsonConfig& json, ModelConfig& config) {
  config.rope.base = 1e6f;  // Where the file does not say.
  LAMINA_RETURN_IF_ERROR(ReadGatedDecoder(json, config));
  LAMINA_ASSIGN_OR_RETURN(config.norm_epsilon, json.GetFloat("rms_norm_eps", 1e-5f));
  LAMINA_ASSIGN_OR_RETURN(config.window, json.GetUint("sliding_window", 0));
  LAMINA_ASSIGN_OR_RETURN(config.experts, json.GetUint("num_local_experts", 8));
  LAMINA_ASSIGN_OR_RETURN(config.experts_per_token, json.GetUint("num_experts_per_tok", 2));
  return absl::OkStatus();
}

absl::StatusOr<Graph> Build(const ModelConfig& config, const WeightSource& weights) {
  DecoderNames names = NamesFor(config, weights);
  names.router = "block_sparse_moe.gate";
  names.experts = "block_sparse_moe.experts";
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  return BuildGatedDecoder(config, names, weights, {});
}

}  // namespace

const Architecture& MixtralArchitecture() {
  static const Architecture* const kArchitecture =
      new Architecture{.name = "mixtral",
                       .hugging_face_types = {"mixtral"},
                       .gguf_name = "",
                       .models = "Mixtral 8x7B, 8x22B",
                       .features = "experts",
                       .read_json = ReadJson,
                       .build = Build};
  return *kArchitecture;
}

}  // namespace lamina::model
