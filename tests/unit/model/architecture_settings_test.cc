// SPDX-License-Identifier: Apache-2.0
//
// What architectures read of settings, without any weights: settings that change what a model
// computes, and those that its files may leave out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "model/architectures/architecture.h"
#include "model/architectures/json_config_internal.h"
#include "model/gguf/gguf_file.h"
#include "tests/support/gguf_writer.h"

namespace lamina::model {
namespace {

using test_support::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kLayers = 6;

absl::Span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The settings of a GGUF file with those that every one has, and `add`.
absl::StatusOr<ModelConfig> ReadGguf(const std::string& architecture,
                                     const std::function<void(GgufWriter&)>& add) {
  GgufWriter writer;
  writer.AddUint(architecture + ".block_count", kLayers);
  writer.AddUint(architecture + ".context_length", 2048);
  writer.AddUint(architecture + ".embedding_length", 32);
  writer.AddUint(architecture + ".feed_forward_length", 32);
  writer.AddUint(architecture + ".attention.head_count", 2);
  writer.AddFloat(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  add(writer);
  writer.AddTensorF32("token_embd.weight", {1, 32}, std::vector<float>(32, 0.0f));
  const std::string text = writer.Finish();
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Parse(Bytes(text)));
  LAMINA_ASSIGN_OR_RETURN(const Architecture* found, FindArchitectureForGguf(architecture));
  ModelConfig config;
  config.format = FileFormat::kGguf;
  LAMINA_RETURN_IF_ERROR(found->read_gguf(*file, config));
  return config;
}

// The settings of a config.json with those that every one has, and `more`.
absl::StatusOr<ModelConfig> ReadJson(const std::string& type, const std::string& more) {
  const std::string text = absl::StrCat(
      R"({"model_type":")", type, R"(","num_hidden_layers":)", kLayers,
      R"(,"hidden_size":64,"intermediate_size":64,"num_attention_heads":4,"head_dim":16,)",
      R"("vocab_size":320,"max_position_embeddings":512)", more, "}");
  LAMINA_ASSIGN_OR_RETURN(const JsonConfig json, JsonConfig::Parse(Bytes(text)));
  LAMINA_ASSIGN_OR_RETURN(const Architecture* found, FindArchitectureForJson(type));
  ModelConfig config;
  config.format = FileFormat::kHuggingFace;
  LAMINA_RETURN_IF_ERROR(found->read_json(json, config));
  return config;
}

std::vector<uint32_t> Windows(const ModelConfig& config) {
  std::vector<uint32_t> windows;
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    windows.push_back(config.WindowOf(layer));
  }
  return windows;
}

class WindowPatternTest : public ::testing::TestWithParam<const char*> {
 protected:
  // The windows of a file with windows of 8 tokens, and `add`.
  static absl::StatusOr<std::vector<uint32_t>> Read(const std::function<void(GgufWriter&)>& add) {
    const std::string architecture = GetParam();
    LAMINA_ASSIGN_OR_RETURN(const ModelConfig config,
                            ReadGguf(architecture, [&](GgufWriter& writer) {
                              writer.AddUint(architecture + ".attention.sliding_window", 8);
                              add(writer);
                            }));
    return Windows(config);
  }
  static std::string Key() { return absl::StrCat(GetParam(), ".attention.sliding_window_pattern"); }
};

TEST_P(WindowPatternTest, APeriodSaysWhichLayersSeeEverything) {
  const auto with = [](uint32_t period) {
    return *Read([period](GgufWriter& writer) { writer.AddUint(Key(), period); });
  };
  EXPECT_THAT(with(3), ElementsAre(8, 8, 0, 8, 8, 0));
  EXPECT_THAT(with(1), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(with(0), ElementsAre(8, 8, 8, 8, 8, 8));
}

TEST_P(WindowPatternTest, AListSaysItOfEachLayer) {
  const auto windows = Read([](GgufWriter& writer) { writer.AddInts(Key(), {0, 1, 1, 0, 0, 1}); });
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_THAT(*windows, ElementsAre(0, 8, 8, 0, 0, 8));

  const absl::Status few = Read([](GgufWriter& writer) {
                             writer.AddInts(Key(), {0, 1, 1, 0, 0});
                           }).status();
  EXPECT_EQ(few.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(few.message()), HasSubstr("5 of 6 layers"));
  EXPECT_EQ(Read([](GgufWriter& writer) { writer.AddString(Key(), "x"); }).status().code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(All, WindowPatternTest, ::testing::Values("gemma2", "gemma3", "gpt-oss"),
                         [](const auto& one) { return absl::StrCat("Architecture", one.index); });

TEST(ArchitectureSettingsTest, WindowsOfGgufFilesThatSayNoPattern) {
  const auto window = [](const std::string& architecture) {
    return [architecture](GgufWriter& writer) {
      writer.AddUint(architecture + ".attention.sliding_window", 8);
    };
  };
  const auto none = [](GgufWriter&) {};
  EXPECT_THAT(Windows(*ReadGguf("gemma2", window("gemma2"))), ElementsAre(8, 0, 8, 0, 8, 0));
  EXPECT_THAT(Windows(*ReadGguf("gpt-oss", window("gpt-oss"))), ElementsAre(8, 0, 8, 0, 8, 0));
  EXPECT_THAT(Windows(*ReadGguf("gemma3", window("gemma3"))), ElementsAre(8, 8, 8, 8, 8, 0));
  EXPECT_EQ(ReadGguf("gemma2", none)->window, 4096u);
  // Converters of Gemma 3 leave the window out where no layer has one.
  EXPECT_THAT(Windows(*ReadGguf("gemma3", none)), ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(ArchitectureSettingsTest, RopeBasesThatFilesLeaveOutAreThoseOfTransformers) {
  const std::pair<const char*, float> bases[] = {{"llama", 1e4f},   {"mistral", 1e4f},
                                                 {"mixtral", 1e6f}, {"gpt_oss", 150000.0f},
                                                 {"smollm3", 2e6f}, {"gemma3_text", 1e6f}};
  for (const auto& [type, base] : bases) {
    const absl::StatusOr<ModelConfig> silent = ReadJson(type, "");
    ASSERT_TRUE(silent.ok()) << type << ": " << silent.status();
    EXPECT_EQ(silent->rope.base, base) << type;
    EXPECT_EQ(ReadJson(type, R"(,"rope_theta":5000.0)")->rope.base, 5000.0f) << type;
  }
}

TEST(ArchitectureSettingsTest, GemmaThatAttendsInBothDirectionsIsRefused) {
  for (const char* type : {"gemma", "gemma2", "gemma3_text"}) {
    EXPECT_TRUE(ReadJson(type, R"(,"use_bidirectional_attention":false)").ok()) << type;
    const absl::Status status = ReadJson(type, R"(,"use_bidirectional_attention":true)").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << type;
    EXPECT_THAT(std::string(status.message()), HasSubstr("use_bidirectional_attention")) << type;
  }
}

// Mamba 2 and its hybrids have such a limit. What is wrong with them is that they are refused.
TEST(ArchitectureSettingsTest, InfinityInAConfigIsNoDamage) {
  const auto config = ReadJson("llama", R"(,"time_step_limit":[0.0,Infinity],"rope_theta":NaN)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.base, 1e4f) << "null counts as absent";
}

}  // namespace
}  // namespace lamina::model
