// SPDX-License-Identifier: Apache-2.0
#include "tests/support/model_goldens.h"

#include <fstream>
#include <string>

#include "tests/support/source_path.h"

namespace lamina::test_support {

namespace {

const nlohmann::json* Read(const std::string& path) {
  std::ifstream file(path);
  return new nlohmann::json(nlohmann::json::parse(file));
}

}  // namespace

const nlohmann::json& RandomModelCases() {
  static const auto* const kCases =
      Read(test_support::SourcePath("tests/fidelity/goldens/random_models.json"));
  return *kCases;
}

const nlohmann::json& RandomModelBf16Cases() {
  static const auto* const kCases =
      Read(test_support::SourcePath("tests/fidelity/goldens/random_models_bf16.json"));
  return *kCases;
}

RandomModelSpec ParseRandomModelSpec(const nlohmann::json& json) {
  RandomModelSpec spec;
  json.at("model_type").get_to(spec.model_type);
  json.at("seed").get_to(spec.seed);
  json.at("layers").get_to(spec.layers);
  json.at("width").get_to(spec.width);
  json.at("ffn_width").get_to(spec.ffn_width);
  json.at("query_heads").get_to(spec.query_heads);
  json.at("kv_heads").get_to(spec.kv_heads);
  json.at("head_dim").get_to(spec.head_dim);
  json.at("vocabulary").get_to(spec.vocabulary);
  json.at("positions_max").get_to(spec.positions_max);
  json.at("tied").get_to(spec.tied);
  json.at("attention_bias").get_to(spec.attention_bias);
  json.at("mlp_bias").get_to(spec.mlp_bias);
  json.at("activation").get_to(spec.activation);
  json.at("window").get_to(spec.window);
  json.at("window_first_layer").get_to(spec.window_first_layer);
  json.at("parallel_residual").get_to(spec.parallel_residual);
  json.at("rotary_share").get_to(spec.rotary_share);
  json.at("rope_theta").get_to(spec.rope_theta);
  json.at("old_config").get_to(spec.old_config);
  if (json.contains("extra")) {
    json.at("experts").get_to(spec.experts);
    json.at("experts_per_token").get_to(spec.experts_per_token);
    json.at("gguf").get_to(spec.gguf);
    const std::string extra = json.at("extra").dump();
    spec.extra = extra.substr(1, extra.size() - 2);
    for (const auto& [key, value] : json.at("gguf_floats").items()) {
      spec.gguf_floats.emplace_back(key, value.get<float>());
    }
  }
  const std::string scaling = json.at("rope_scaling").dump();
  spec.rope_scaling = scaling.substr(1, scaling.size() - 2);  // Without the braces.
  return spec;
}

}  // namespace lamina::test_support
