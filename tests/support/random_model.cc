// SPDX-License-Identifier: Apache-2.0
//
// Names, shapes and values of random models, and the two kinds of files.

#include "tests/support/random_model.h"

#include <bit>
#include <cmath>
#include <fstream>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/random_decoders.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/tiny_tokenizer.h"

namespace lamina::test_support {
namespace {

uint64_t Fnv1a64(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

bool IsNormWeight(absl::string_view name) {
  return absl::StrContains(name, "norm") && absl::EndsWith(name, ".weight");
}

// Keeps activations near one, and the scores of attention spread.
int ScaleExponent(const RandomTensor& tensor) {
  const absl::string_view name = tensor.name;
  if (absl::EndsWith(name, ".bias")) {
    return -2;
  }
  if (absl::StrContains(name, "embed_positions")) {
    return -1;
  }
  if (absl::StrContains(name, "embed_tokens") || absl::StrContains(name, "embed_in")) {
    return 0;
  }
  const int half_log = (static_cast<int>(std::bit_width(tensor.shape.back())) - 1) / 2;
  const bool sharper = absl::StrContains(name, "q_proj") || absl::StrContains(name, "k_proj") ||
                       absl::StrContains(name, "query_key_value");
  return (sharper ? 1 : 0) - half_log;
}

// MXFP4's values, in units of their block's scale, and the scale that all blocks of a tensor have.
constexpr float kMxfp4Values[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

int Mxfp4Exponent(const RandomTensor& tensor) { return ScaleExponent(tensor) - 3; }

// The largest value of MXFP4 that is not larger in magnitude.
float ToMxfp4(float x, const RandomTensor& tensor) {
  const float unit = std::ldexp(1.0f, Mxfp4Exponent(tensor));
  float nearest = 0.0f;
  for (const float value : kMxfp4Values) {
    nearest = value * unit <= std::abs(x) ? value * unit : nearest;
  }
  return std::copysign(nearest, x);
}

// Stored [experts, out, in / 32, 16] and [experts, out, in / 32], from values [experts, in, out].
void AddMxfp4(const RandomTensor& tensor, const std::vector<float>& values,
              SafetensorsWriter& writer) {
  const uint64_t experts = tensor.shape[0];
  const uint64_t in = tensor.shape[1];
  const uint64_t out = tensor.shape[2];
  LAMINA_CHECK(in % 32 == 0);
  const float unit = std::ldexp(1.0f, Mxfp4Exponent(tensor));
  std::string blocks;
  for (uint64_t expert = 0; expert < experts; ++expert) {
    for (uint64_t row = 0; row < out; ++row) {
      for (uint64_t col = 0; col < in; col += 2) {
        unsigned byte = 0;
        for (unsigned half = 0; half < 2; ++half) {
          const float x = values[(expert * in + col + half) * out + row];
          unsigned code = std::signbit(x) ? 8 : 0;
          for (unsigned i = 0; i < 8; ++i) {
            code += kMxfp4Values[i] * unit == std::abs(x) ? i : 0;
          }
          byte |= code << (4 * half);
        }
        blocks.push_back(static_cast<char>(byte));
      }
    }
  }
  writer.AddTensor(tensor.name + "_blocks", {{experts, out, in / 32, 16}}, "U8", blocks);
  writer.AddTensor(
      tensor.name + "_scales", {{experts, out, in / 32}}, "U8",
      std::string(experts * out * in / 32, static_cast<char>(127 + Mxfp4Exponent(tensor))));
}

class TensorList {
 public:
  void Matrix(const std::string& name, uint64_t rows, uint64_t cols) {
    tensors_.push_back({name, {rows, cols}});
  }
  void Vector(const std::string& name, uint64_t size) { tensors_.push_back({name, {size}}); }
  void Linear(const std::string& name, uint64_t rows, uint64_t cols, bool bias) {
    Matrix(name + ".weight", rows, cols);
    if (bias) {
      Vector(name + ".bias", rows);
    }
  }
  void LayerNorm(const std::string& name, uint64_t size) {
    Vector(name + ".weight", size);
    Vector(name + ".bias", size);
  }
  std::vector<RandomTensor> Take() { return std::move(tensors_); }

 private:
  std::vector<RandomTensor> tensors_;
};

std::vector<RandomTensor> LlamaTensors(const RandomModelSpec& spec) {
  TensorList list;
  const uint64_t d = spec.width;
  const uint64_t q = uint64_t{spec.query_heads} * spec.head_dim;
  const uint64_t kv = uint64_t{spec.kv_heads} * spec.head_dim;
  const bool qkv_bias = spec.attention_bias || spec.model_type == "qwen2";
  list.Matrix("model.embed_tokens.weight", spec.vocabulary, d);
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    list.Linear(prefix + "self_attn.q_proj", q, d, qkv_bias);
    list.Linear(prefix + "self_attn.k_proj", kv, d, qkv_bias);
    list.Linear(prefix + "self_attn.v_proj", kv, d, qkv_bias);
    list.Linear(prefix + "self_attn.o_proj", d, q, spec.attention_bias);
    list.Linear(prefix + "mlp.gate_proj", spec.ffn_width, d, spec.mlp_bias);
    list.Linear(prefix + "mlp.up_proj", spec.ffn_width, d, spec.mlp_bias);
    list.Linear(prefix + "mlp.down_proj", d, spec.ffn_width, spec.mlp_bias);
    list.Vector(prefix + "input_layernorm.weight", d);
    list.Vector(prefix + "post_attention_layernorm.weight", d);
  }
  list.Vector("model.norm.weight", d);
  if (!spec.tied) {
    list.Matrix("lm_head.weight", spec.vocabulary, d);
  }
  return list.Take();
}

std::vector<RandomTensor> OptTensors(const RandomModelSpec& spec) {
  TensorList list;
  const uint64_t d = spec.width;
  list.Matrix("model.decoder.embed_tokens.weight", spec.vocabulary, d);
  list.Matrix("model.decoder.embed_positions.weight", uint64_t{spec.positions_max} + 2, d);
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string prefix = absl::StrCat("model.decoder.layers.", layer, ".");
    for (const char* part : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      list.Linear(absl::StrCat(prefix, "self_attn.", part), d, d, spec.attention_bias);
    }
    list.LayerNorm(prefix + "self_attn_layer_norm", d);
    list.Linear(prefix + "fc1", spec.ffn_width, d, spec.attention_bias);
    list.Linear(prefix + "fc2", d, spec.ffn_width, spec.attention_bias);
    list.LayerNorm(prefix + "final_layer_norm", d);
  }
  list.LayerNorm("model.decoder.final_layer_norm", d);
  if (!spec.tied) {
    list.Matrix("lm_head.weight", spec.vocabulary, d);
  }
  return list.Take();
}

std::vector<RandomTensor> NeoxTensors(const RandomModelSpec& spec) {
  TensorList list;
  const uint64_t d = spec.width;
  list.Matrix("gpt_neox.embed_in.weight", spec.vocabulary, d);
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string prefix = absl::StrCat("gpt_neox.layers.", layer, ".");
    list.LayerNorm(prefix + "input_layernorm", d);
    list.LayerNorm(prefix + "post_attention_layernorm", d);
    list.Linear(prefix + "attention.query_key_value", 3 * d, d, spec.attention_bias);
    list.Linear(prefix + "attention.dense", d, d, spec.attention_bias);
    list.Linear(prefix + "mlp.dense_h_to_4h", spec.ffn_width, d, true);
    list.Linear(prefix + "mlp.dense_4h_to_h", d, spec.ffn_width, true);
  }
  list.LayerNorm("gpt_neox.final_layer_norm", d);
  if (!spec.tied) {
    list.Matrix("embed_out.weight", spec.vocabulary, d);
  }
  return list.Take();
}

std::string RopeText(const RandomModelSpec& spec) {
  const std::string more = spec.rope_scaling.empty() ? "" : absl::StrCat(",", spec.rope_scaling);
  const std::string type = absl::StrContains(more, "rope_type") ? "" : ",\"rope_type\":\"default\"";
  const bool partial = spec.model_type == "gpt_neox";
  if (spec.old_config) {
    const std::string scaling =
        spec.rope_scaling.empty() ? "null" : absl::StrCat("{", spec.rope_scaling, "}");
    return absl::StrCat(",\"rope_scaling\":", scaling,
                        partial ? ",\"rotary_emb_base\":" : ",\"rope_theta\":", spec.rope_theta,
                        partial ? absl::StrCat(",\"rotary_pct\":", spec.rotary_share) : "");
  }
  return absl::StrCat(",\"rope_parameters\":{\"rope_theta\":", spec.rope_theta,
                      partial ? absl::StrCat(",\"partial_rotary_factor\":", spec.rotary_share) : "",
                      type, more, "}");
}

const char* Bool(bool value) { return value ? "true" : "false"; }

std::string FamilyText(const RandomModelSpec& spec) {
  if (spec.model_type == "opt") {
    return absl::StrCat(",\"ffn_dim\":", spec.ffn_width, ",\"activation_function\":\"",
                        spec.activation, "\",\"enable_bias\":", Bool(spec.attention_bias),
                        ",\"do_layer_norm_before\":true,\"word_embed_proj_dim\":", spec.width);
  }
  const std::string shared =
      absl::StrCat(",\"intermediate_size\":", spec.ffn_width, ",\"hidden_act\":\"", spec.activation,
                   "\"", RopeText(spec));
  if (spec.model_type == "gpt_neox") {
    return absl::StrCat(shared, ",\"layer_norm_eps\":1e-05,\"use_parallel_residual\":",
                        Bool(spec.parallel_residual),
                        ",\"attention_bias\":", Bool(spec.attention_bias));
  }
  std::string text =
      absl::StrCat(shared, ",\"rms_norm_eps\":1e-06,\"num_key_value_heads\":", spec.kv_heads);
  if (spec.head_dim * spec.query_heads != spec.width) {
    absl::StrAppend(&text, ",\"head_dim\":", spec.head_dim);
  }
  if (spec.model_type == "llama") {
    absl::StrAppend(&text, ",\"attention_bias\":", Bool(spec.attention_bias),
                    ",\"mlp_bias\":", Bool(spec.mlp_bias));
  } else {
    absl::StrAppend(&text,
                    ",\"sliding_window\":", spec.window == 0 ? "null" : absl::StrCat(spec.window));
  }
  if (spec.model_type == "qwen2") {
    absl::StrAppend(&text, ",\"use_sliding_window\":", Bool(spec.window != 0),
                    ",\"max_window_layers\":", spec.window_first_layer);
  }
  return text;
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  return file ? absl::OkStatus() : absl::UnknownError(absl::StrCat("cannot write ", path));
}

// Rows 2i and 2i + 1 of a head are what were rows i and i + head_dim / 2: how converters to GGUF
// order q and k for interleaved rope.
std::vector<float> Interleave(const std::vector<float>& values, uint64_t heads, uint64_t head_dim) {
  const uint64_t cols = values.size() / (heads * head_dim);
  std::vector<float> out(values.size());
  for (uint64_t row = 0; row < heads * head_dim; ++row) {
    const uint64_t head = row / head_dim;
    const uint64_t i = row % head_dim;
    const uint64_t to = head * head_dim + (i % (head_dim / 2)) * 2 + i / (head_dim / 2);
    std::copy_n(values.begin() + static_cast<ptrdiff_t>(row * cols), cols,
                out.begin() + static_cast<ptrdiff_t>(to * cols));
  }
  return out;
}

// What converters make of q, k and v interleaved by head: all of q, then all of k, then all of v.
std::vector<float> StackQkv(const std::vector<float>& values, uint64_t heads, uint64_t head_dim) {
  const size_t block = values.size() / (heads * 3);  // The rows of one head of q, k or v.
  LAMINA_CHECK(block % head_dim == 0);
  std::vector<float> out(values.size());
  for (size_t head = 0; head < heads; ++head) {
    for (size_t part = 0; part < 3; ++part) {
      std::copy_n(values.begin() + static_cast<ptrdiff_t>((head * 3 + part) * block), block,
                  out.begin() + static_cast<ptrdiff_t>((part * heads + head) * block));
    }
  }
  return out;
}

// The values as a GGUF file of this architecture orders them.
std::vector<float> GgufOrder(const RandomModelSpec& spec, const RandomTensor& tensor,
                             std::vector<float> values) {
  if (spec.model_type == "gpt_neox") {
    return absl::StrContains(tensor.name, "query_key_value")
               ? StackQkv(values, spec.query_heads, spec.head_dim)
               : values;
  }
  if (spec.model_type == "qwen2") {
    return values;  // Its rope pairs halves in GGUF files too.
  }
  if (absl::StrContains(tensor.name, "q_proj")) {
    return Interleave(values, spec.query_heads, spec.head_dim);
  }
  return absl::StrContains(tensor.name, "k_proj") ? Interleave(values, spec.kv_heads, spec.head_dim)
                                                  : values;
}

std::string GgufName(const std::string& name) {
  static constexpr const char* kParts[][2] = {
      {"gpt_neox.embed_in", "token_embd"},
      {"gpt_neox.layers.", "blk."},
      {"gpt_neox.final_layer_norm", "output_norm"},
      {"attention.query_key_value", "attn_qkv"},
      {"attention.dense", "attn_output"},
      {"mlp.dense_h_to_4h", "ffn_up"},
      {"mlp.dense_4h_to_h", "ffn_down"},
      {"embed_out", "output"},
      {"model.embed_tokens", "token_embd"},
      {"model.layers.", "blk."},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"input_layernorm", "attn_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"model.norm", "output_norm"},
      {"lm_head", "output"},
  };
  std::string result = name;
  for (const auto& [from, to] : kParts) {
    const size_t at = result.find(from);
    if (at != std::string::npos) {
      result.replace(at, std::string(from).size(), to);
    }
  }
  return result;
}

std::string GgufArchitecture(const RandomModelSpec& spec) {
  if (spec.model_type == "gpt_neox") {
    return "gptneox";
  }
  if (IsRandomDecoder(spec)) {
    return DecoderGgufName(spec);
  }
  return spec.model_type == "qwen2" ? "qwen2" : "llama";
}

void AddGgufMetadata(const RandomModelSpec& spec, GgufWriter& writer) {
  const std::string prefix = GgufArchitecture(spec) + ".";
  writer.AddString("general.architecture", GgufArchitecture(spec));
  writer.AddString("general.name", "Random");
  writer.AddUint(prefix + "block_count", spec.layers);
  writer.AddUint(prefix + "context_length", spec.positions_max);
  writer.AddUint(prefix + "embedding_length", spec.width);
  writer.AddUint(prefix + "feed_forward_length", spec.ffn_width);
  writer.AddUint(prefix + "attention.head_count", spec.query_heads);
  if (spec.model_type == "gpt_neox") {
    writer.AddFloat(prefix + "attention.layer_norm_epsilon", 1e-5f);
    writer.AddBool(prefix + "use_parallel_residual", spec.parallel_residual);
    writer.AddUint(prefix + "rope.dimension_count",
                   static_cast<uint32_t>(static_cast<float>(spec.head_dim) * spec.rotary_share));
    return;
  }
  if (IsRandomDecoder(spec)) {
    return AddDecoderGgufMetadata(spec, writer);
  }
  writer.AddUint(prefix + "attention.head_count_kv", spec.kv_heads);
  writer.AddUint(prefix + "attention.key_length", spec.head_dim);
  writer.AddUint(prefix + "attention.value_length", spec.head_dim);
  writer.AddFloat(prefix + "attention.layer_norm_rms_epsilon", 1e-6f);
  writer.AddUint(prefix + "rope.dimension_count", spec.head_dim);
  writer.AddFloat(prefix + "rope.freq_base", spec.rope_theta);
  writer.AddUint(prefix + "vocab_size", spec.vocabulary);
  if (spec.window != 0) {
    writer.AddUint(prefix + "attention.sliding_window", spec.window);
  }
}

}  // namespace

std::vector<RandomTensor> RandomTensors(const RandomModelSpec& spec) {
  if (IsRandomDecoder(spec)) {
    return DecoderTensors(spec);
  }
  if (spec.model_type == "opt") {
    return OptTensors(spec);
  }
  return spec.model_type == "gpt_neox" ? NeoxTensors(spec) : LlamaTensors(spec);
}

std::vector<float> RandomValues(const RandomTensor& tensor, uint64_t seed) {
  const uint64_t count =
      std::accumulate(tensor.shape.begin(), tensor.shape.end(), uint64_t{1}, std::multiplies<>());
  const uint64_t key = Fnv1a64(tensor.name) ^ seed;
  const bool norm = IsNormWeight(tensor.name);
  const float scale = std::ldexp(1.0f / 128.0f, ScaleExponent(tensor));
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) {
    const int k = static_cast<int>(Mix(key + (i + 1) * 0x9e3779b97f4a7c15) >> 56) - 128;
    values[i] = norm ? 1.0f + std::floor(static_cast<float>(k) / 16.0f) / 32.0f
                     : static_cast<float>(k) * scale;
  }
  return values;
}

std::vector<float> InterleaveForGguf(const std::vector<float>& values, uint64_t heads,
                                     uint64_t head_dim) {
  return Interleave(values, heads, head_dim);
}

std::vector<float> RandomValues(const RandomModelSpec& spec, const RandomTensor& tensor) {
  std::vector<float> values = RandomValues(tensor, spec.seed);
  if (absl::StartsWith(spec.model_type, "gemma") && IsNormWeight(tensor.name)) {
    for (float& x : values) {
      x -= 1.0f;
    }
  }
  if (IsMxfp4Tensor(spec, tensor.name)) {
    for (float& x : values) {
      x = ToMxfp4(x, tensor);
    }
  }
  return values;
}

std::string RandomConfig(const RandomModelSpec& spec) {
  const bool has_tokenizer = spec.vocabulary >= kTinyTokenizerSizeMin;
  return absl::StrCat(
      "{\"model_type\":\"", spec.model_type, "\",\"num_hidden_layers\":", spec.layers,
      ",\"hidden_size\":", spec.width, ",\"num_attention_heads\":", spec.query_heads,
      ",\"vocab_size\":", spec.vocabulary, ",\"max_position_embeddings\":", spec.positions_max,
      ",\"tie_word_embeddings\":", Bool(spec.tied),
      ",\"eos_token_id\":", has_tokenizer ? absl::StrCat(kTinyTokenizerEos) : "null",
      IsRandomDecoder(spec) ? DecoderConfigText(spec) : FamilyText(spec), "}\n");
}

absl::Status WriteRandomModel(const RandomModelSpec& spec, const std::string& directory,
                              absl::string_view type) {
  SafetensorsWriter writer;
  for (const RandomTensor& tensor : RandomTensors(spec)) {
    const std::vector<float> values = RandomValues(spec, tensor);
    if (type == "MXFP4" && IsMxfp4Tensor(spec, tensor.name)) {
      AddMxfp4(tensor, values, writer);
    } else if (type != "F32") {
      writer.AddTensorBF16(tensor.name, tensor.shape, values);
    } else {
      writer.AddTensorF32(tensor.name, tensor.shape, values);
    }
  }
  absl::Status status = WriteFile(directory + "/config.json", RandomConfig(spec));
  status.Update(WriteFile(directory + "/model.safetensors", writer.Finish()));
  if (spec.vocabulary >= kTinyTokenizerSizeMin) {
    status.Update(WriteFile(directory + "/tokenizer.json", TinyTokenizerJson(spec.vocabulary)));
  }
  return status;
}

absl::Status WriteRandomGguf(const RandomModelSpec& spec, const std::string& path,
                             absl::string_view type) {
  LAMINA_CHECK(spec.model_type != "opt");
  LAMINA_CHECK(spec.rope_scaling.empty());
  GgufWriter writer;
  AddGgufMetadata(spec, writer);
  if (spec.vocabulary >= kTinyTokenizerSizeMin) {
    AddTinyTokenizer(spec.vocabulary, writer);
  }
  if (IsRandomDecoder(spec)) {
    for (const GgufTensor& tensor : DecoderGgufTensors(spec)) {
      writer.AddTensorF32(tensor.name, tensor.shape, tensor.values);
    }
    return WriteFile(path, writer.Finish());
  }
  for (const RandomTensor& tensor : RandomTensors(spec)) {
    const std::vector<float> values = GgufOrder(spec, tensor, RandomValues(tensor, spec.seed));
    if (type == "Q8_0" && tensor.shape.size() == 2) {
      writer.AddTensorQ8_0(GgufName(tensor.name), tensor.shape, values);
    } else {
      writer.AddTensorF32(GgufName(tensor.name), tensor.shape, values);
    }
  }
  return WriteFile(path, writer.Finish());
}

}  // namespace lamina::test_support
