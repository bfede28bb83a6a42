// SPDX-License-Identifier: Apache-2.0
//
// Shapes from the config.json of a Hugging Face repository, without its weights.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "cost/model_shape.h"
#include "nlohmann/json.hpp"

namespace lamina::cost {
namespace {

using Json = nlohmann::json;

bool Has(const Json& json, const char* key) { return json.contains(key) && !json[key].is_null(); }

absl::Status Read(const Json& json, const char* key, uint32_t& out) {
  if (!Has(json, key) || !json[key].is_number_unsigned() ||
      json[key].get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: \"", key, "\" should be a whole number of zero or more"));
  }
  out = json[key].get<uint32_t>();
  return absl::OkStatus();
}

absl::Status ReadIfThere(const Json& json, const char* key, uint32_t& out) {
  return Has(json, key) ? Read(json, key, out) : absl::OkStatus();
}

absl::Status ReadBoolIfThere(const Json& json, const char* key, bool& out) {
  if (!Has(json, key)) {
    return absl::OkStatus();
  }
  if (!json[key].is_boolean()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: \"", key, "\" should be true or false"));
  }
  out = json[key].get<bool>();
  return absl::OkStatus();
}

struct Family {
  absl::string_view type;
  const char* hidden;   // The key of the MLP's columns.
  const char* experts;  // The key of the number of experts; null for none.
  const char* experts_per_token;
  uint32_t mlp_matrices;
  Runs runs;
};

const std::vector<Family>& Families() {
  static const auto* const kFamilies = new std::vector<Family>{
      {"llama", "intermediate_size", nullptr, nullptr, 3, {true, "LLaMA's graph"}},
      {"mistral", "intermediate_size", nullptr, nullptr, 3, {true, "LLaMA's graph"}},
      {"qwen2", "intermediate_size", nullptr, nullptr, 3, {true, "Qwen2's graph"}},
      {"opt", "ffn_dim", nullptr, nullptr, 2, {true, "OPT's graph"}},
      {"qwen3", "intermediate_size", nullptr, nullptr, 3, {true, "Qwen3's graph"}},
      {"mixtral",
       "intermediate_size",
       "num_local_experts",
       "num_experts_per_tok",
       3,
       {true, "its graph; compute nodes on processors alone"}},
      {"qwen3_moe",
       "moe_intermediate_size",
       "num_experts",
       "num_experts_per_tok",
       3,
       {true, "its graph; compute nodes on processors alone"}},
      {"gpt_oss",
       "intermediate_size",
       "num_local_experts",
       "num_experts_per_tok",
       3,
       {true, "its graph; compute nodes on processors alone"}}};
  return *kFamilies;
}

absl::StatusOr<const Family*> FindFamily(const Json& json) {
  const std::string type =
      json.contains("model_type") && json["model_type"].is_string() ? json["model_type"] : "";
  std::vector<absl::string_view> known;
  for (const Family& family : Families()) {
    if (family.type == type) {
      return &family;
    }
    known.push_back(family.type);
  }
  return absl::UnimplementedError(absl::StrCat("config.json: model_type \"", type,
                                               "\" has no cost model; the known ones are ",
                                               absl::StrJoin(known, ", ")));
}

// Which layers have the window: those that layer_types names, else all of Mistral's, and Qwen's
// from max_window_layers on, if use_sliding_window says so.
absl::Status ReadWindow(const Json& json, absl::string_view type, ModelShape& shape) {
  LAMINA_RETURN_IF_ERROR(ReadIfThere(json, "sliding_window", shape.window));
  const bool qwen = type == "qwen2" || type == "qwen3" || type == "qwen3_moe";
  bool used = !qwen;
  LAMINA_RETURN_IF_ERROR(ReadBoolIfThere(json, "use_sliding_window", used));
  if (!used || shape.window == 0) {
    shape.window = 0;
    return absl::OkStatus();
  }
  if (Has(json, "layer_types") && json["layer_types"].is_array()) {
    const Json& types = json["layer_types"];
    shape.window_layers =
        static_cast<uint32_t>(std::count(types.begin(), types.end(), Json("sliding_attention")));
  } else {
    uint32_t first = 0;
    if (qwen) {
      LAMINA_RETURN_IF_ERROR(ReadIfThere(json, "max_window_layers", first));
    }
    shape.window_layers = shape.layers - std::min(first, shape.layers);
  }
  shape.window = shape.window_layers > 0 ? shape.window : 0;
  return absl::OkStatus();
}

// Yarn stretches the original length, where that is more than the file says (model/architectures/
// rope.cc).
absl::Status ReadStretch(const Json& json, ModelShape& shape) {
  const char* const key = Has(json, "rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!Has(json, key) || !json[key].is_object()) {
    return absl::OkStatus();
  }
  const Json& rope = json[key];
  const Json type = rope.value(rope.contains("rope_type") ? "rope_type" : "type", Json());
  if (type != "yarn" || !Has(rope, "factor") || !rope["factor"].is_number()) {
    return absl::OkStatus();
  }
  uint32_t original = shape.positions_max;
  LAMINA_RETURN_IF_ERROR(ReadIfThere(rope, "original_max_position_embeddings", original));
  LAMINA_RETURN_IF_ERROR(ReadIfThere(json, "original_max_position_embeddings", original));
  const double stretched = rope["factor"].get<double>() * original;
  if (stretched > shape.positions_max) {
    // A number over 32 bits becomes one that CheckShape() refuses.
    shape.positions_max =
        static_cast<uint32_t>(std::min<double>(stretched, std::numeric_limits<uint32_t>::max()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelShape> ShapeFromConfigJson(absl::string_view text, absl::string_view name) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("config.json: not a JSON object; fetch the file again");
  }
  LAMINA_ASSIGN_OR_RETURN(const Family* family, FindFamily(json));
  ModelShape shape;
  shape.name = std::string(name);
  shape.architecture = std::string(family->type);
  shape.mlp_matrices = family->mlp_matrices;
  shape.runs = family->runs;
  shape.source = "config.json";
  LAMINA_RETURN_IF_ERROR(Read(json, "num_hidden_layers", shape.layers));
  LAMINA_RETURN_IF_ERROR(Read(json, "hidden_size", shape.width));
  LAMINA_RETURN_IF_ERROR(Read(json, "num_attention_heads", shape.query_heads));
  LAMINA_RETURN_IF_ERROR(Read(json, "vocab_size", shape.vocabulary));
  LAMINA_RETURN_IF_ERROR(Read(json, family->hidden, shape.hidden));
  LAMINA_RETURN_IF_ERROR(Read(json, "max_position_embeddings", shape.positions_max));
  LAMINA_RETURN_IF_ERROR(ReadStretch(json, shape));
  shape.kv_heads = shape.query_heads;
  LAMINA_RETURN_IF_ERROR(ReadIfThere(json, "num_key_value_heads", shape.kv_heads));
  shape.head_dim = shape.query_heads > 0 ? shape.width / shape.query_heads : 0;
  LAMINA_RETURN_IF_ERROR(ReadIfThere(json, "head_dim", shape.head_dim));
  if (family->experts != nullptr) {
    LAMINA_RETURN_IF_ERROR(Read(json, family->experts, shape.experts));
    LAMINA_RETURN_IF_ERROR(Read(json, family->experts_per_token, shape.experts_per_token));
  }
  shape.tied_embeddings = family->type == "opt";
  LAMINA_RETURN_IF_ERROR(ReadBoolIfThere(json, "tie_word_embeddings", shape.tied_embeddings));
  LAMINA_RETURN_IF_ERROR(ReadWindow(json, family->type, shape));
  if (const absl::Status valid = CheckShape(shape); !valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", valid.message()));
  }
  return shape;
}

}  // namespace lamina::cost
