// SPDX-License-Identifier: Apache-2.0
#include "coordinator/streaming_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cache_salt.h"

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kModel[] = R"({"name": "Small", "layers": 3, "kv_heads": 2, "head_dim": 32})";

class StreamingFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<StreamingHeads> Parse(const std::string& text) const {
    return ParseStreamingFile(text, "heads.json", model_, layers_);
  }
  // A file with this list, of this model.
  static std::string File(const std::string& streaming, const std::string& model = kModel) {
    return absl::StrCat(R"({"format": 1, "model": )", model, R"(, "streaming": )", streaming, "}");
  }
  std::string ErrorOf(const std::string& text) const {
    const auto heads = Parse(text);
    EXPECT_TRUE(absl::IsInvalidArgument(heads.status())) << heads.status();
    EXPECT_THAT(std::string(heads.status().message()), HasSubstr("heads.json"));
    return std::string(heads.status().message());
  }

  model::ModelConfig model_{.name = "Small"};
  std::vector<AttentionDescriptor> layers_ =
      std::vector<AttentionDescriptor>(3, {.query_heads = 4, .kv_heads = 2, .head_dim = 32});
};

TEST_F(StreamingFileTest, NamesHeadsByLayer) {
  const auto heads = Parse(File(R"([{"layer": 2, "heads": [1, 0]}, {"layer": 0, "heads": [1]}])"));
  ASSERT_TRUE(heads.ok()) << heads.status();
  EXPECT_THAT(heads->layers, ElementsAre(ElementsAre(1), IsEmpty(), ElementsAre(0, 1)));
  EXPECT_EQ(heads->count(), 3u);
}

TEST_F(StreamingFileTest, AFileWithoutHeadsNamesNone) {
  const auto heads = Parse(File("[]"));
  ASSERT_TRUE(heads.ok()) << heads.status();
  EXPECT_EQ(*heads, StreamingHeads());
}

TEST_F(StreamingFileTest, WhatIsNoSuchFileIsRefused) {
  EXPECT_THAT(ErrorOf("heads"), HasSubstr("no JSON object"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(ErrorOf(std::string(1000, '[')), HasSubstr("64"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("format: missing"));
  EXPECT_THAT(ErrorOf(R"({"format": 2})"), HasSubstr("format: 2 is another format"));
  EXPECT_THAT(ErrorOf(R"({"format": 1, "heads": []})"), HasSubstr("unknown key 'heads'"));
  EXPECT_THAT(ErrorOf(R"({"format": 1})"), HasSubstr("model: missing"));
  EXPECT_THAT(ErrorOf(absl::StrCat(R"({"format": 1, "model": )", kModel, "}")),
              HasSubstr("streaming: missing"));
  EXPECT_THAT(ErrorOf(File("[1]")), HasSubstr("streaming.0 is no JSON object"));
  EXPECT_THAT(ErrorOf(File(R"([{"heads": [1]}])")), HasSubstr("streaming.0.layer: missing"));
  EXPECT_THAT(ErrorOf(File(R"([{"layer": -1, "heads": [1]}])")), HasSubstr("streaming.0.layer"));
  EXPECT_THAT(ErrorOf(File(R"([{"layer": 1}])")), HasSubstr("streaming.0.heads: missing"));
  EXPECT_THAT(ErrorOf(File(R"([{"layer": 1, "heads": []}])")), HasSubstr("missing, empty"));
}

TEST_F(StreamingFileTest, AFileOfAnotherModelIsRefused) {
  EXPECT_THAT(
      ErrorOf(File("[]", R"({"layers": 4, "kv_heads": 2, "head_dim": 32})")),
      HasSubstr("of 4 layers with 2 KV heads of 32, and this cluster's has 3 with 2 of 32"));
  EXPECT_THAT(ErrorOf(File("[]", R"({"layers": 3, "kv_heads": 1, "head_dim": 32})")),
              HasSubstr("with 1 KV heads of 32"));
  EXPECT_THAT(ErrorOf(File("[]", R"({"layers": 3, "kv_heads": 2, "head_dim": 64})")),
              HasSubstr("with 2 KV heads of 64"));
  EXPECT_THAT(
      ErrorOf(File("[]", R"({"name": "Large", "layers": 3, "kv_heads": 2, "head_dim": 32})")),
      HasSubstr("'Large' is another model than this cluster's, 'Small'"));
  EXPECT_TRUE(Parse(File("[]", R"({"layers": 3, "kv_heads": 2, "head_dim": 32})")).ok());
  model_.name = "";
  EXPECT_TRUE(Parse(File("[]")).ok());
}

TEST_F(StreamingFileTest, HeadsThatTheModelDoesNotHaveAreRefused) {
  EXPECT_THAT(ErrorOf(File(R"([{"layer": 3, "heads": [0]}])")),
              HasSubstr("streaming.0.layer: 3 is not in [0, 2]"));
  EXPECT_THAT(ErrorOf(File(R"([{"layer": 1, "heads": [0, 2]}])")),
              HasSubstr("2 is no KV head of layer 1, which are 0 to 1"));
  EXPECT_THAT(ErrorOf(File(R"([{"layer": 1, "heads": ["x"]}])")), HasSubstr("is no KV head"));
  EXPECT_THAT(ErrorOf(File(R"([{"layer": 1, "heads": [0, 0]}])")), HasSubstr("0 comes twice"));
  EXPECT_THAT(ErrorOf(File(R"([{"layer": 1, "heads": [0]}, {"layer": 1, "heads": [1]}])")),
              HasSubstr("streaming.1.layer: 1 comes twice"));
}

TEST_F(StreamingFileTest, AModelWithWindowsIsRefused) {
  layers_[1].window = 64;
  EXPECT_THAT(ErrorOf(File("[]")), HasSubstr("layer 1 attends to a window of 64 tokens"));
}

TEST_F(StreamingFileTest, AFileThatIsNotThereAndAnEmptyOneAreRefused) {
  const std::string path = ::testing::TempDir() + "/streaming_file_test.json";
  std::filesystem::remove(path);
  EXPECT_TRUE(absl::IsNotFound(ReadStreamingFile(path, model_, layers_).status()));
  std::ofstream(path).flush();
  const auto empty = ReadStreamingFile(path, model_, layers_);
  EXPECT_THAT(std::string(empty.status().message()), HasSubstr("has 0 bytes"));
  std::ofstream(path) << File(R"([{"layer": 1, "heads": [0]}])");
  const auto heads = ReadStreamingFile(path, model_, layers_);
  ASSERT_TRUE(heads.ok()) << heads.status();
  EXPECT_EQ(heads->count(), 1u);
}

TEST(CacheSaltTest, BlocksOfHeadsThatStreamAreFoundByTheirLikeAlone) {
  const std::string zero(1, '\0');
  const PreparedPolicy exact{.name = "attend_remote"};
  const PreparedPolicy one{.path = plan::AttentionPath::kStreaming, .lossy = "one"};
  const PreparedPolicy other{.path = plan::AttentionPath::kStreaming, .lossy = "other"};
  EXPECT_EQ(CacheSaltOf(exact, ""), "");
  EXPECT_EQ(CacheSaltOf(exact, "mine"), "mine");
  EXPECT_EQ(CacheSaltOf(one, "mine"), CacheSaltOf(one, "mine"));
  EXPECT_NE(CacheSaltOf(one, "mine"), CacheSaltOf(one, ""));
  EXPECT_NE(CacheSaltOf(one, ""), CacheSaltOf(other, ""));
  EXPECT_NE(CacheSaltOf(one, ""), CacheSaltOf(exact, ""));
  const PreparedPolicy hybrid{.name = "fetch_hybrid", .path = plan::AttentionPath::kHybrid};
  EXPECT_NE(CacheSaltOf(hybrid, "mine"), CacheSaltOf(exact, "mine"));
  EXPECT_NE(CacheSaltOf(hybrid, "mine"), CacheSaltOf(hybrid, ""));
  // A client that guesses the word.
  EXPECT_NE(CacheSaltOf(one, ""), CacheSaltOf(exact, zero + "one" + zero));
  EXPECT_NE(CacheSaltOf(exact, zero), CacheSaltOf(exact, zero + zero));
}

}  // namespace
}  // namespace lamina::coordinator
