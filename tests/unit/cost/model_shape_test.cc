// SPDX-License-Identifier: Apache-2.0
#include "cost/model_shape.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cost/catalogue_text.h"

namespace lamina::cost {
namespace {

using testing::HasSubstr;

ModelShape ShapeOfTree(const char* name) { return *CatalogueOfTree("default").FindModel(name); }

TEST(ModelShapeTest, ParametersAreThoseOfTheNames) {
  struct Case {
    const char* name;
    double billions;
  };
  for (const Case& c : {Case{"LLaMA-13B", 13.0},
                        {"LLaMA-33B", 32.5},
                        {"LLaMA-65B", 65.2},
                        {"Llama-3-8B", 8.03},
                        {"Llama-3-70B", 70.6},
                        {"OPT-13B", 12.9},
                        {"OPT-30B", 30.0},
                        {"OPT-66B", 65.7},
                        {"Qwen2.5-7B", 7.62},
                        {"Qwen2.5-32B", 32.8},
                        {"Qwen2.5-72B", 72.7},
                        {"Qwen3-8B", 8.19},
                        {"Qwen3-32B", 32.8},
                        {"Qwen3-30B-A3B", 30.5},
                        {"Qwen3-235B-A22B", 235},
                        {"Mixtral-8x7B", 46.7},
                        {"gpt-oss-20b", 20.9},
                        {"gpt-oss-120b", 116.8},
                        {"SmolLM2-135M", 0.1345}}) {
    EXPECT_NEAR(ShapeOfTree(c.name).Parameters() / 1e9, c.billions, 0.015 * c.billions) << c.name;
  }
}

TEST(ModelShapeTest, BytesAreThoseOfThePaper) {
  const ModelShape shape = ShapeOfTree("LLaMA-13B");
  // 4 e d per layer and row, both ways, where every query head has its KV head.
  EXPECT_EQ(shape.RowBytesOut() + shape.RowBytesBack(), 4.0 * 2 * 5120);
  EXPECT_EQ(shape.KvBytesPerToken(), 2.0 * 2 * 5120 * 40);
  // Grouped queries: e dh (Hq + 2 Hkv) out, e dh Hq back.
  const ModelShape grouped = ShapeOfTree("Llama-3-70B");
  EXPECT_EQ(grouped.RowBytesOut(), 2.0 * 128 * (64 + 2 * 8));
  EXPECT_EQ(grouped.RowBytesBack(), 2.0 * 128 * 64);
}

TEST(ModelShapeTest, ARowReadsItsExpertsAndManyRowsReadAll) {
  const ModelShape shape = ShapeOfTree("Mixtral-8x7B");
  const double rest = shape.AttentionWeights() + 4096.0 * 8;
  EXPECT_DOUBLE_EQ(shape.LayerWeightsRead(1), rest + 2 * shape.ExpertWeights());
  EXPECT_DOUBLE_EQ(shape.LayerWeightsRead(2), rest + 8 * (1 - 0.5625) * shape.ExpertWeights());
  EXPECT_NEAR(shape.LayerWeightsRead(1000), shape.LayerWeights(), 1);
  EXPECT_DOUBLE_EQ(shape.LayerFlopsPerRow(), 2 * (rest + 2 * shape.ExpertWeights()));
  const ModelShape dense = ShapeOfTree("Llama-3-8B");
  EXPECT_EQ(dense.LayerWeightsRead(1), dense.LayerWeights());
}

TEST(ModelShapeTest, WindowsBoundWhatALayerAttendsTo) {
  const ModelShape shape = ShapeOfTree("gpt-oss-20b");
  EXPECT_EQ(shape.AttendedTokens(100), 24.0 * 100);
  EXPECT_EQ(shape.AttendedTokens(1000), 12.0 * 128 + 12 * 1000);
  EXPECT_EQ(ShapeOfTree("Llama-3-8B").AttendedTokens(1000), 32.0 * 1000);
}

TEST(ModelShapeTest, SlotsBehindAWindowAreFreeWhereEveryLayerHasOne) {
  ModelShape shape = ShapeOfTree("gpt-oss-20b");
  EXPECT_EQ(shape.TokensHeld(1000), 1000);
  shape.window_layers = shape.layers;
  EXPECT_EQ(shape.TokensHeld(1000), 128 + 256);
  EXPECT_EQ(shape.TokensHeld(100), 100);
}

constexpr char kMixtral[] =
    R"({"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
  "max_position_embeddings": 32768, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null})";

TEST(ConfigJsonTest, ReadsAShapeWithoutWeights) {
  const absl::StatusOr<ModelShape> shape = ShapeFromConfigJson(kMixtral, "Mixtral-8x7B");
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->Parameters(), ShapeOfTree("Mixtral-8x7B").Parameters());
  EXPECT_EQ(shape->window_layers, 0u);
  EXPECT_TRUE(shape->runs.yes);
  EXPECT_THAT(shape->runs.why, HasSubstr("processors"));
}

TEST(ConfigJsonTest, ReadsWindowsByLayer) {
  const absl::StatusOr<ModelShape> shape = ShapeFromConfigJson(
      R"({"model_type": "gpt_oss", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 64, "vocab_size": 100,
          "max_position_embeddings": 4096, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128,
          "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})",
      "small");
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->head_dim, 32u);
  EXPECT_EQ(shape->AttendedTokens(1000), 2.0 * 128 + 1000);
}

TEST(ConfigJsonTest, QwensWindowCountsOnlyIfItIsUsed) {
  std::string text =
      R"({"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 4096,
          "sliding_window": 128, "max_window_layers": 3, "use_sliding_window": false})";
  EXPECT_EQ(ShapeFromConfigJson(text, "q")->window, 0u);
  text = absl::StrReplaceAll(text, {{"false", "true"}});
  EXPECT_EQ(ShapeFromConfigJson(text, "q")->window_layers, 1u);
}

TEST(ConfigJsonTest, YarnStretchesTheLengthThatAFileHasFromBefore) {
  const auto positions = [](absl::string_view key, absl::string_view rope) {
    const std::string text = absl::StrReplaceAll(
        kMixtral,
        {{"{\"model_type\"", absl::StrCat("{\"", key, "\": {", rope, "}, \"model_type\"")}});
    const absl::StatusOr<ModelShape> shape = ShapeFromConfigJson(text, "x");
    EXPECT_TRUE(shape.ok()) << shape.status();
    return shape.ok() ? shape->positions_max : 0;
  };
  EXPECT_EQ(positions("rope_scaling", R"("type": "yarn", "factor": 4.0)"), 131072u);
  EXPECT_EQ(positions("rope_parameters", R"("rope_type": "yarn", "factor": 4.0,)"
                                         R"("original_max_position_embeddings": 16384)"),
            65536u);
  EXPECT_EQ(positions("rope_scaling", R"("rope_type": "yarn", "factor": 4.0,)"
                                      R"("original_max_position_embeddings": 8192)"),
            32768u);
  EXPECT_EQ(positions("rope_scaling", R"("rope_type": "linear", "factor": 4.0)"), 32768u);
}

TEST(ConfigJsonTest, BadFilesAreNamed) {
  const auto error = [](absl::string_view from, absl::string_view to) {
    const std::string text = absl::StrReplaceAll(kMixtral, {{from, to}});
    return std::string(ShapeFromConfigJson(text, "x").status().message());
  };
  EXPECT_THAT(error("\"mixtral\"", "\"bert\""), HasSubstr("model_type \"bert\" has no cost model"));
  EXPECT_THAT(error("4096", "-1"), HasSubstr("\"hidden_size\" should be a whole number"));
  EXPECT_THAT(error("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 0"),
              HasSubstr("layers: 0 is not in [1, 1024]"));
  EXPECT_THAT(error("\"num_key_value_heads\": 8", "\"num_key_value_heads\": 5"),
              HasSubstr("is not a multiple of kv_heads"));
  EXPECT_THAT(error("\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9"),
              HasSubstr("experts_per_token: 9 is not in [1, 8]"));
  EXPECT_THAT(std::string(ShapeFromConfigJson("[", "x").status().message()), HasSubstr("JSON"));
}

}  // namespace
}  // namespace lamina::cost
