// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/huggingface_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace lamina::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGoldens[] = LAMINA_SOURCE_DIR "/tests/fidelity/tokenizers/";

constexpr char kTokenizer[] = R"({
  "added_tokens": [{"id": 3, "content": "<e>", "special": true}, {"id": 4, "content": "<|im_end|>", "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
  "post_processor": null,
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<e>": 3}, "merges": ["a b"]}})";

class HuggingFaceTokenizerTest : public ::testing::Test {
 protected:
  // The process id keeps test runs on one machine apart.
  HuggingFaceTokenizerTest()
      : directory_(absl::StrCat(::testing::TempDir(), "/lamina_tokenizer_", getpid(), "_",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(directory_);
  }
  ~HuggingFaceTokenizerTest() override { std::filesystem::remove_all(directory_); }
  HuggingFaceTokenizerTest(const HuggingFaceTokenizerTest&) = delete;
  HuggingFaceTokenizerTest& operator=(const HuggingFaceTokenizerTest&) = delete;

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name) << text;
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() const { return LoadTokenizer(directory_); }

  // Loads kTokenizer with `from` replaced by `to`.
  absl::Status LoadChanged(const std::string& from, const std::string& to) {
    Write("tokenizer.json", absl::StrReplaceAll(kTokenizer, {{from, to}}));
    return Load().status();
  }

  const std::string directory_;
};

TEST_F(HuggingFaceTokenizerTest, ReadsRolesAndTemplateFromTheFilesBeside) {
  Write("tokenizer.json", kTokenizer);
  Write("tokenizer_config.json", R"({"eos_token": {"content": "<e>"}, "bos_token": null,
      "chat_template": [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]})");
  Write("generation_config.json", R"({"eos_token_id": [3, 1]})");
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  EXPECT_EQ((*tokenizer)->bos(), -1);
  EXPECT_EQ((*tokenizer)->eos(), 3);
  EXPECT_THAT((*tokenizer)->end_tokens(), ElementsAre(3, 1, 4));
  EXPECT_EQ((*tokenizer)->chat_template(), "D");
  EXPECT_THAT(*(*tokenizer)->Encode("ab<e>", {}), ElementsAre(2, 3));
}

TEST_F(HuggingFaceTokenizerTest, PrefersTheTemplateFileAndTheModelsIdsAsLastResort) {
  Write("tokenizer.json", kTokenizer);
  Write("tokenizer_config.json", R"({"chat_template": "inside"})");
  Write("chat_template.jinja", "file");
  Write("config.json", R"({"bos_token_id": 0, "eos_token_id": 99})");
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok());

  EXPECT_EQ((*tokenizer)->chat_template(), "file");
  EXPECT_EQ((*tokenizer)->bos(), 0);
  EXPECT_EQ((*tokenizer)->eos(), -1) << "99 is outside the vocabulary";
}

TEST_F(HuggingFaceTokenizerTest, SaysWhatIsMissing) {
  const absl::Status status = Load().status();

  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("has neither tokenizer.json nor tokenizer.model"));
  EXPECT_EQ(LoadTokenizer(directory_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(HuggingFaceTokenizerTest, ReportsADamagedFile) {
  Write("tokenizer.json", std::string(kTokenizer).substr(0, 300));

  const absl::Status status = Load().status();

  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json is damaged"));
}

TEST_F(HuggingFaceTokenizerTest, NamesPartsThatItDoesNotKnow) {
  const auto unknown = absl::StatusCode::kUnimplemented;
  EXPECT_EQ(LoadChanged("\"BPE\"", "\"WordPiece\"").code(), unknown);
  EXPECT_EQ(LoadChanged("\"normalizer\": null", R"("normalizer": {"type": "X"})").code(), unknown);
  EXPECT_EQ(LoadChanged(R"("type": "ByteLevel", "add)", R"("type": "X", "add)").code(), unknown);
  EXPECT_EQ(LoadChanged("\"post_processor\": null", R"("post_processor": {"type": "X"})").code(),
            unknown);
  EXPECT_EQ(
      LoadChanged(R"("decoder": {"type": "ByteLevel"})", R"("decoder": {"type": "X"})").code(),
      unknown);
  EXPECT_EQ(LoadChanged("\"merges\"", R"("dropout": 0.5, "merges")").code(), unknown);
}

TEST_F(HuggingFaceTokenizerTest, RefusesWrongTypes) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(LoadChanged("\"a\": 0", "\"a\": -1").code(), invalid);
  EXPECT_EQ(LoadChanged("\"a\": 0", "\"a\": 99999999999").code(), invalid);
  EXPECT_EQ(LoadChanged("\"id\": 3", "\"id\": \"x\"").code(), invalid);
  EXPECT_EQ(LoadChanged("[\"a b\"]", "[1]").code(), invalid);
  EXPECT_EQ(LoadChanged("[\"a b\"]", "[\"b a\"]").code(), invalid);
  EXPECT_EQ(LoadChanged("\"model\"", "\"models\"").code(), invalid);
  EXPECT_EQ(LoadChanged("\"add_prefix_space\": false", "\"add_prefix_space\": 1").code(), invalid);
}

TEST_F(HuggingFaceTokenizerTest, ReadsSentencePieceWithAddedTokens) {
  std::filesystem::copy_file(absl::StrCat(kGoldens, "spm_bpe/tokenizer.model"),
                             directory_ + "/tokenizer.model");
  Write("tokenizer_config.json", R"({"add_bos_token": false, "eos_token": "<|im_end|>",
      "added_tokens_decoder": {"1000": {"content": "<|im_end|>", "special": true}}})");
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  EXPECT_EQ((*tokenizer)->vocabulary_size(), 1001u);
  EXPECT_EQ((*tokenizer)->eos(), 1000);
  EXPECT_EQ((*tokenizer)->Encode("a<|im_end|>", {})->back(), 1000);
  EXPECT_EQ(*(*tokenizer)->Decode(*(*tokenizer)->Encode("a b", {}), true), "a b");
}

TEST_F(HuggingFaceTokenizerTest, NewerSentencePieceModelsPutNoSpaceAfterASpecialToken) {
  std::filesystem::copy_file(absl::StrCat(kGoldens, "spm_bpe/tokenizer.model"),
                             directory_ + "/tokenizer.model");
  const auto decode = [this](const std::string& legacy) {
    Write("tokenizer_config.json", absl::StrCat("{\"legacy\": ", legacy, "}"));
    const auto tokenizer = Load();
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *(*tokenizer)->Decode(*(*tokenizer)->Encode("a</s>b", {.add_special = false}), false);
  };

  EXPECT_EQ(decode("true"), "a</s> b");
  EXPECT_EQ(decode("false"), "a</s>b");
}

TEST_F(HuggingFaceTokenizerTest, RefusesADamagedSentencePieceModel) {
  Write("tokenizer.model", "this is no protocol buffer");

  EXPECT_EQ(Load().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::model
