// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_decoders.h"

#include <cmath>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/check.h"

namespace lamina::test_support {
namespace {

// What a family's files have besides, and instead of, what LLaMA's have.
struct Family {
  std::string gguf;
  bool head_norms = false;      // Norms of each head,
  bool all_head_norms = false;  // or of all together.
  std::vector<std::string> norms = {"input_layernorm", "post_attention_layernorm"};
  std::vector<std::string> gguf_norms = {"attn_norm", "ffn_norm"};
  bool fused = false;
  bool interleaved_in_gguf = false;
  bool gemma = false;
  std::string experts = {};  // "mlp" or "block_sparse_moe"; gpt-oss' are told by its name.
};

const std::map<std::string, Family>& Families() {
  static const auto* const kFamilies = new std::map<std::string, Family>{
      {"qwen3", {.gguf = "qwen3", .head_norms = true}},
      {"qwen3_moe", {.gguf = "qwen3moe", .head_norms = true, .experts = "mlp"}},
      {"olmo2",
       {.gguf = "olmo2",
        .all_head_norms = true,
        .norms = {"post_attention_layernorm", "post_feedforward_layernorm"},
        .gguf_norms = {"post_attention_norm", "post_ffw_norm"}}},
      {"olmoe", {.gguf = "olmoe", .all_head_norms = true, .experts = "mlp"}},
      {"granite", {.gguf = "granite", .interleaved_in_gguf = true}},
      {"phi3", {.gguf = "phi3", .fused = true}},
      {"smollm3", {.gguf = "smollm3", .interleaved_in_gguf = true}},
      {"gemma", {.gguf = "gemma", .gemma = true}},
      {"gemma2",
       {.gguf = "gemma2",
        .norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                  "post_feedforward_layernorm"},
        .gguf_norms = {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"},
        .gemma = true}},
      {"gemma3_text",
       {.gguf = "gemma3",
        .head_norms = true,
        .norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                  "post_feedforward_layernorm"},
        .gguf_norms = {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"},
        .gemma = true}},
      {"mixtral", {.gguf = "llama", .interleaved_in_gguf = true, .experts = "block_sparse_moe"}},
      {"gpt_oss", {.gguf = "gpt-oss", .gguf_norms = {"attn_norm", "post_attention_norm"}}},
  };
  return *kFamilies;
}

const Family& FamilyOf(const RandomModelSpec& spec) { return Families().at(spec.model_type); }

// The experts of a layer, each with its own tensors.
void AddExperts(const RandomModelSpec& spec, const std::string& prefix,
                std::vector<RandomTensor>& list) {
  const uint64_t d = spec.width;
  const uint64_t ffn = spec.ffn_width;
  const bool mixtral = spec.model_type == "mixtral";
  list.push_back({absl::StrCat(prefix, "gate.weight"), {spec.experts, d}});
  for (uint32_t expert = 0; expert < spec.experts; ++expert) {
    const std::string name = absl::StrCat(prefix, "experts.", expert, ".");
    list.push_back({absl::StrCat(name, mixtral ? "w1" : "gate_proj", ".weight"), {ffn, d}});
    list.push_back({absl::StrCat(name, mixtral ? "w3" : "up_proj", ".weight"), {ffn, d}});
    list.push_back({absl::StrCat(name, mixtral ? "w2" : "down_proj", ".weight"), {d, ffn}});
  }
}

void AddGptOssExperts(const RandomModelSpec& spec, const std::string& prefix,
                      std::vector<RandomTensor>& list) {
  const uint64_t d = spec.width;
  const uint64_t ffn = spec.ffn_width;
  const uint64_t e = spec.experts;
  list.push_back({prefix + "mlp.router.weight", {e, d}});
  list.push_back({prefix + "mlp.router.bias", {e}});
  list.push_back({prefix + "mlp.experts.gate_up_proj", {e, d, 2 * ffn}});
  list.push_back({prefix + "mlp.experts.gate_up_proj_bias", {e, 2 * ffn}});
  list.push_back({prefix + "mlp.experts.down_proj", {e, ffn, d}});
  list.push_back({prefix + "mlp.experts.down_proj_bias", {e, d}});
  list.push_back({prefix + "self_attn.sinks", {spec.query_heads}});
}

void AddAttention(const RandomModelSpec& spec, const Family& family, const std::string& prefix,
                  std::vector<RandomTensor>& list) {
  const uint64_t d = spec.width;
  const uint64_t q = uint64_t{spec.query_heads} * spec.head_dim;
  const uint64_t kv = uint64_t{spec.kv_heads} * spec.head_dim;
  const auto linear = [&](const char* name, uint64_t rows, uint64_t cols) {
    list.push_back({absl::StrCat(prefix, "self_attn.", name, ".weight"), {rows, cols}});
    if (spec.attention_bias) {
      list.push_back({absl::StrCat(prefix, "self_attn.", name, ".bias"), {rows}});
    }
  };
  if (family.fused) {
    linear("qkv_proj", q + 2 * kv, d);
  } else {
    linear("q_proj", q, d);
    linear("k_proj", kv, d);
    linear("v_proj", kv, d);
  }
  linear("o_proj", d, q);
  if (family.head_norms || family.all_head_norms) {
    list.push_back({prefix + "self_attn.q_norm.weight", {family.head_norms ? spec.head_dim : q}});
    list.push_back({prefix + "self_attn.k_norm.weight", {family.head_norms ? spec.head_dim : kv}});
  }
}

// [E, rows, 2n] of a checkpoint of gpt-oss to rows `first`, `first` + 2, ... of each expert,
// [E, n, rows].
std::vector<float> EveryOther(const std::vector<float>& values, uint64_t experts, uint64_t in,
                              uint64_t out, uint64_t first, uint64_t step) {
  std::vector<float> picked;
  for (uint64_t expert = 0; expert < experts; ++expert) {
    for (uint64_t row = first; row < out; row += step) {
      for (uint64_t col = 0; col < in; ++col) {
        picked.push_back(values[(expert * in + col) * out + row]);
      }
    }
  }
  return picked;
}

std::string GgufTensorName(const Family& family, std::string name) {
  name = absl::StrReplaceAll(name, {{"model.layers.", "blk."},
                                    {"model.embed_tokens", "token_embd"},
                                    {"model.norm", "output_norm"},
                                    {"lm_head", "output"},
                                    {"self_attn.q_proj", "attn_q"},
                                    {"self_attn.k_proj", "attn_k"},
                                    {"self_attn.v_proj", "attn_v"},
                                    {"self_attn.qkv_proj", "attn_qkv"},
                                    {"self_attn.o_proj", "attn_output"},
                                    {"self_attn.q_norm", "attn_q_norm"},
                                    {"self_attn.k_norm", "attn_k_norm"},
                                    {"self_attn.sinks", "attn_sinks.weight"},
                                    {"mlp.gate_up_proj", "ffn_up"},
                                    {"mlp.gate_proj", "ffn_gate"},
                                    {"mlp.up_proj", "ffn_up"},
                                    {"mlp.down_proj", "ffn_down"},
                                    {"mlp.router", "ffn_gate_inp"},
                                    {"mlp.gate.", "ffn_gate_inp."},
                                    {"block_sparse_moe.gate.", "ffn_gate_inp."}});
  for (size_t i = 0; i < family.norms.size(); ++i) {
    name = absl::StrReplaceAll(name, {{absl::StrCat(".", family.norms[i], "."),
                                       absl::StrCat(".", family.gguf_norms[i], ".")}});
  }
  return name;
}

// The three tensors of all experts of a layer, from those of each.
class ExpertStacks {
 public:
  // Whether the tensor is an expert's, and taken.
  bool Take(const RandomTensor& tensor, const std::vector<float>& values) {
    const size_t at = tensor.name.find(".experts.");
    if (at == std::string::npos) {
      return false;
    }
    const std::string layer = tensor.name.substr(0, tensor.name.find('.', 13));
    const bool gate =
        absl::EndsWith(tensor.name, "gate_proj.weight") || absl::EndsWith(tensor.name, "w1.weight");
    const bool up =
        absl::EndsWith(tensor.name, "up_proj.weight") || absl::EndsWith(tensor.name, "w3.weight");
    GgufTensor& stack = stacks_[absl::StrCat(
        absl::StrReplaceAll(layer, {{"model.layers.", "blk."}}), gate ? ".ffn_gate_exps.weight"
                                                                 : up ? ".ffn_up_exps.weight"
                                                                      : ".ffn_down_exps.weight")];
    stack.shape = {stack.shape.empty() ? 1 : stack.shape[0] + 1, tensor.shape[0], tensor.shape[1]};
    stack.values.insert(stack.values.end(), values.begin(), values.end());
    return true;
  }
  void AddTo(std::vector<GgufTensor>& tensors) {
    for (auto& [name, stack] : stacks_) {
      stack.name = name;
      tensors.push_back(stack);
    }
  }

 private:
  std::map<std::string, GgufTensor> stacks_;
};

// Whether it is one of gpt-oss' experts, of which three tensors were added.
bool AddGptOssStacks(const RandomModelSpec& spec, const RandomTensor& tensor,
                     const std::vector<float>& values, std::vector<GgufTensor>& tensors) {
  if (!absl::StrContains(tensor.name, "mlp.experts.")) {
    return false;
  }
  const std::string layer = absl::StrReplaceAll(tensor.name.substr(0, tensor.name.find(".mlp")),
                                                {{"model.layers.", "blk."}});
  const uint64_t e = spec.experts;
  const bool bias = absl::EndsWith(tensor.name, "_bias");
  const uint64_t in = bias ? 1 : tensor.shape[1];
  const uint64_t out = tensor.shape.back();
  const std::string end = bias ? ".bias" : ".weight";
  const auto add = [&](const char* name, uint64_t first, uint64_t step) {
    std::vector<uint64_t> shape = {e, out / step, in};
    if (bias) {
      shape.pop_back();
    }
    tensors.push_back(
        {absl::StrCat(layer, ".", name, end), shape, EveryOther(values, e, in, out, first, step)});
  };
  if (absl::StrContains(tensor.name, "gate_up")) {
    add("ffn_gate_exps", 0, 2);
    add("ffn_up_exps", 1, 2);
  } else {
    add("ffn_down_exps", 0, 1);
  }
  return true;
}

}  // namespace

bool IsRandomDecoder(const RandomModelSpec& spec) { return Families().contains(spec.model_type); }

bool IsMxfp4Tensor(const RandomModelSpec& spec, absl::string_view name) {
  return spec.model_type == "gpt_oss" && absl::StrContains(name, "mlp.experts.") &&
         !absl::EndsWith(name, "_bias");
}

std::vector<RandomTensor> DecoderTensors(const RandomModelSpec& spec) {
  const Family& family = FamilyOf(spec);
  std::vector<RandomTensor> list;
  const uint64_t d = spec.width;
  const uint64_t ffn = spec.ffn_width;
  const auto linear = [&](const std::string& name, uint64_t rows, uint64_t cols) {
    list.push_back({name + ".weight", {rows, cols}});
    if (spec.mlp_bias) {
      list.push_back({name + ".bias", {rows}});
    }
  };
  list.push_back({"model.embed_tokens.weight", {spec.vocabulary, d}});
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    AddAttention(spec, family, prefix, list);
    if (spec.model_type == "gpt_oss") {
      AddGptOssExperts(spec, prefix, list);
    } else if (!family.experts.empty()) {
      AddExperts(spec, absl::StrCat(prefix, family.experts, "."), list);
    } else if (family.fused) {
      linear(prefix + "mlp.gate_up_proj", 2 * ffn, d);
      linear(prefix + "mlp.down_proj", d, ffn);
    } else {
      linear(prefix + "mlp.gate_proj", ffn, d);
      linear(prefix + "mlp.up_proj", ffn, d);
      linear(prefix + "mlp.down_proj", d, ffn);
    }
    for (const std::string& norm : family.norms) {
      list.push_back({absl::StrCat(prefix, norm, ".weight"), {d}});
    }
  }
  list.push_back({"model.norm.weight", {d}});
  if (!spec.tied) {
    list.push_back({"lm_head.weight", {spec.vocabulary, d}});
  }
  return list;
}

std::string DecoderConfigText(const RandomModelSpec& spec) {
  std::string text =
      absl::StrCat(",\"intermediate_size\":", spec.ffn_width,
                   FamilyOf(spec).gemma ? ",\"hidden_activation\":\"gelu_pytorch_tanh\""
                                        : absl::StrCat(",\"hidden_act\":\"", spec.activation, "\""),
                   ",\"rms_norm_eps\":1e-06,\"num_key_value_heads\":", spec.kv_heads,
                   ",\"head_dim\":", spec.head_dim,
                   ",\"attention_bias\":", spec.attention_bias ? "true" : "false",
                   ",\"mlp_bias\":", spec.mlp_bias ? "true" : "false");
  if (spec.experts != 0) {
    absl::StrAppend(&text, ",\"num_local_experts\":", spec.experts,
                    ",\"num_experts\":", spec.experts,
                    ",\"num_experts_per_tok\":", spec.experts_per_token,
                    ",\"moe_intermediate_size\":", spec.ffn_width);
  }
  if (!absl::StrContains(spec.extra, "rope_parameters")) {
    absl::StrAppend(&text, ",\"rope_parameters\":{\"rope_theta\":", spec.rope_theta,
                    spec.rope_scaling.empty() ? ",\"rope_type\":\"default\""
                                              : absl::StrCat(",", spec.rope_scaling),
                    "}");
  }
  return absl::StrCat(text, spec.extra.empty() ? "" : ",", spec.extra);
}

std::string DecoderGgufName(const RandomModelSpec& spec) { return FamilyOf(spec).gguf; }

void AddDecoderGgufMetadata(const RandomModelSpec& spec, GgufWriter& writer) {
  const std::string prefix = absl::StrCat(FamilyOf(spec).gguf, ".");
  writer.AddUint(prefix + "attention.head_count_kv", spec.kv_heads);
  writer.AddUint(prefix + "attention.key_length", spec.head_dim);
  writer.AddUint(prefix + "attention.value_length", spec.head_dim);
  writer.AddFloat(prefix + "attention.layer_norm_rms_epsilon", 1e-6f);
  writer.AddFloat(prefix + "rope.freq_base", spec.rope_theta);
  writer.AddUint(prefix + "rope.dimension_count",
                 static_cast<uint32_t>(static_cast<float>(spec.head_dim) * spec.rotary_share));
  if (spec.window != 0) {
    writer.AddUint(prefix + "attention.sliding_window", spec.window);
  }
  if (spec.experts != 0) {
    writer.AddUint(prefix + "expert_count", spec.experts);
    writer.AddUint(prefix + "expert_used_count", spec.experts_per_token);
    writer.AddUint(prefix + "expert_feed_forward_length", spec.ffn_width);
  }
  for (const auto& [key, value] : spec.gguf_floats) {
    writer.AddFloat(prefix + key, value);
  }
}

std::vector<GgufTensor> DecoderGgufTensors(const RandomModelSpec& spec) {
  const Family& family = FamilyOf(spec);
  std::vector<GgufTensor> tensors;
  ExpertStacks stacks;
  for (const RandomTensor& tensor : DecoderTensors(spec)) {
    std::vector<float> values = RandomValues(spec, tensor);
    if (spec.model_type == "gpt_oss" ? AddGptOssStacks(spec, tensor, values, tensors)
                                     : stacks.Take(tensor, values)) {
      continue;
    }
    if (family.gemma && absl::StrContains(tensor.name, "norm")) {
      for (float& x : values) {
        x += 1.0f;  // As converters do.
      }
    }
    if (family.interleaved_in_gguf &&
        (absl::StrContains(tensor.name, "q_proj") || absl::StrContains(tensor.name, "k_proj"))) {
      const bool q = absl::StrContains(tensor.name, "q_proj");
      values = InterleaveForGguf(values, q ? spec.query_heads : spec.kv_heads, spec.head_dim);
    }
    tensors.push_back({GgufTensorName(family, tensor.name), tensor.shape, std::move(values)});
  }
  stacks.AddTo(tensors);
  return tensors;
}

}  // namespace lamina::test_support
