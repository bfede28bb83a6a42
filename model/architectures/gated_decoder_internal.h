// SPDX-License-Identifier: Apache-2.0
//
// The decoder that LLaMA and its descendants share: RMS norms, rotary positions, attention, a gated
// MLP or experts. ModelConfig says what the model is; GatedDecoderOptions what differs in its files
// (names, tensors that hold several matrices) and between families.
//
//   one layer:   h = x + r N(attention(rope(norms of q, k(QKV N(x)))))
//                y = h + r N(mlp(N(h)))
//
// with N the norms before and behind, as ModelConfig::norm_places says, and r the residual scale.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/architectures/json_config_internal.h"
#include "model/gguf/gguf_file.h"
#include "model/graph.h"
#include "model/model_config.h"
#include "model/weight_source.h"

namespace lamina::model {

// The settings of config.json that these models name alike.
absl::Status ReadGatedDecoder(const JsonConfig& json, ModelConfig& config);
// Reads them from a GGUF file, under "<prefix>.".
absl::Status ReadGatedDecoder(const GgufFile& file, const std::string& prefix, ModelConfig& config);

// Names of tensors. Those of norms are whole; others lack ".weight" and ".bias".
struct DecoderNames {
  std::string embedding;
  std::string layer;  // In front of the layer's number; the next ones come behind it.
  std::string attention_norm, attention_norm_behind;
  std::string q, k, v, o;
  std::string qkv;  // Instead of q, k, v, where that is fused.
  std::string q_norm, k_norm;
  std::string sinks;
  std::string mlp_norm, mlp_norm_behind;
  std::string gate, up, down;
  std::string gate_up;  // Instead of gate and up, where that is fused.
  std::string router;
  // One tensor for each expert, under "<experts>.<number>.<name>"; or where `experts` is empty,
  // one for all of a layer, [experts, rows, cols].
  std::string experts;
  std::string expert_gate, expert_up, expert_down;
  std::string final_norm;
  std::string head;
};

// `prefix` is "model." in most files; those of models that also see images have others.
DecoderNames HuggingFaceNames(absl::string_view prefix = "model.");
DecoderNames GgufNames();
// By the config's format. With Hugging Face files it looks for the prefix under which the embedding
// is there.
DecoderNames NamesFor(const ModelConfig& config, const WeightSource& weights);

struct GatedDecoderOptions {
  RopeLayout rope_layout = RopeLayout::kHalves;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool fused_qkv = false;
  bool fused_gate_up = false;
  bool expert_bias = false;  // And of the router.
  bool sinks = false;
  // Gate and up of an expert in one tensor, their rows taking turns; experts stored [in, out].
  bool gate_up_take_turns = false;
  bool experts_transposed = false;
  RouterKind router = RouterKind::kSoftmaxNormalised;
  float norm_offset = 0.0f;  // Added to the weights of all norms.
};

// Errors: kInvalidArgument naming an op; those of reading sinks.
absl::StatusOr<Graph> BuildGatedDecoder(const ModelConfig& config, const DecoderNames& names,
                                        const WeightSource& weights,
                                        const GatedDecoderOptions& options);

// Builds it with the names of NamesFor().
absl::StatusOr<Graph> BuildGatedDecoder(const ModelConfig& config, const WeightSource& weights,
                                        const GatedDecoderOptions& options);

}  // namespace lamina::model
