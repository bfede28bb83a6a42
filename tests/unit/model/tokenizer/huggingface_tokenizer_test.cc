// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/huggingface_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/source_path.h"

namespace lamina::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGoldens[] = "tests/fidelity/tokenizers/";

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

TEST_F(HuggingFaceTokenizerTest, ReadsRolesAndTemplateFromTheFilesNextToIt) {
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

// Models of text and images may have it there alone.
TEST_F(HuggingFaceTokenizerTest, TakesTheTemplateOfTheProcessorWhereTheTokenizerHasNone) {
  Write("tokenizer.json", kTokenizer);
  Write("chat_template.json", R"({"chat_template": "of the processor"})");
  EXPECT_EQ((*Load())->chat_template(), "of the processor");

  Write("tokenizer_config.json", R"({"chat_template": "of the tokenizer"})");
  EXPECT_EQ((*Load())->chat_template(), "of the tokenizer");
}

TEST_F(HuggingFaceTokenizerTest, InfinityInASettingIsNoDamage) {
  Write("tokenizer.json", kTokenizer);
  Write("config.json", R"({"time_step_limit": [0.0, Infinity], "bos_token_id": 0})");
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos(), 0);
}

TEST_F(HuggingFaceTokenizerTest, ATemplateForToolsIsPartOfTheOne) {
  Write("tokenizer.json", kTokenizer);
  Write("tokenizer_config.json", R"({"chat_template": [
      {"name": "default", "template": "D\n"}, {"name": "tool_use", "template": "T\r\n"}]})");
  EXPECT_EQ((*Load())->chat_template(), "{% if tools %}\nT{%+ else %}\nD{%+ endif %}");

  Write("chat_template.jinja", "file");
  std::filesystem::create_directories(directory_ + "/additional_chat_templates");
  Write("additional_chat_templates/tool_use.jinja", "tools' file");
  EXPECT_EQ((*Load())->chat_template(), "{% if tools %}\ntools' file{%+ else %}\nfile{%+ endif %}");
}

// DeepSeek-R1-Distill-Qwen has such files: its post-processor puts nothing before a text.
TEST_F(HuggingFaceTokenizerTest, ClassesOfLlamaPutEndsAsTheirSettingsSay) {
  const auto encode = [this](const std::string& settings, const std::string& processor = "null",
                             const std::string& bos = "\"a\"") {
    Write("tokenizer.json",
          absl::StrReplaceAll(kTokenizer, {{"\"post_processor\": null",
                                            absl::StrCat("\"post_processor\": ", processor)}}));
    Write("tokenizer_config.json",
          absl::StrCat(R"({"eos_token": "<e>", "bos_token": )", bos, ", ", settings, "}"));
    const auto tokenizer = Load();
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *(*tokenizer)->Encode("ab", {});
  };
  const std::string around = R"({"type": "BertProcessing", "cls": ["b", 1], "sep": ["b", 1]})";

  for (const std::string name : {"LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer"}) {
    const std::string of = absl::StrCat(R"("tokenizer_class": ")", name, "\"");
    EXPECT_THAT(encode(of + R"(, "add_bos_token": true)"), ElementsAre(0, 2)) << name;
    EXPECT_THAT(encode(of + R"(, "add_bos_token": true, "add_eos_token": true)"),
                ElementsAre(0, 2, 3));
    EXPECT_THAT(encode(of + R"(, "add_bos_token": false, "add_eos_token": false)", around),
                ElementsAre(2));
    EXPECT_THAT(encode(of, around), ElementsAre(1, 2, 1)) << "which say nothing";
  }
  EXPECT_THAT(encode(R"("tokenizer_class": "Qwen2Tokenizer", "add_bos_token": true)"),
              ElementsAre(2));
  EXPECT_THAT(
      encode(R"("tokenizer_class": "LlamaTokenizer", "add_bos_token": true)", "null", "null"),
      ElementsAre(2))
      << "there is none";
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

// `levels` sequences within each other, with `inner` in the middle.
std::string Nested(const std::string& list, const std::string& inner, int levels) {
  std::string text;
  for (int i = 0; i < levels; ++i) {
    absl::StrAppend(&text, R"({"type": "Sequence", ")", list, R"(": [)");
  }
  text += inner;
  for (int i = 0; i < levels; ++i) {
    text += "]}";
  }
  return text;
}

TEST_F(HuggingFaceTokenizerTest, RefusesSequencesThatNestWithoutEnd) {
  const auto load = [this](int levels) {
    std::vector<absl::Status> out;
    out.push_back(LoadChanged(
        "\"normalizer\": null",
        absl::StrCat("\"normalizer\": ", Nested("normalizers", R"({"type": "NFC"})", levels))));
    out.push_back(LoadChanged(R"({"type": "ByteLevel", "add_prefix_space": false})",
                              Nested("pretokenizers", R"({"type": "ByteLevel"})", levels)));
    out.push_back(
        LoadChanged("\"post_processor\": null",
                    absl::StrCat("\"post_processor\": ",
                                 Nested("processors", R"({"type": "ByteLevel"})", levels))));
    out.push_back(LoadChanged(
        R"("decoder": {"type": "ByteLevel"})",
        absl::StrCat("\"decoder\": ", Nested("decoders", R"({"type": "Fuse"})", levels))));
    return out;
  };
  for (const absl::Status& status : load(20)) {
    EXPECT_TRUE(status.ok()) << status;
  }
  for (const absl::Status& status : load(20'000)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("nests lists and objects in levels: 40"));
  }
}

TEST_F(HuggingFaceTokenizerTest, RefusesAnIdFarBeyondTheTokensThatTheFileLists) {
  const absl::Status sparse = LoadChanged("\"a\": 0", "\"a\": 16777215");
  EXPECT_EQ(sparse.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sparse.message()),
              HasSubstr("token \"a\" has id 16777215, outside 0 to 65541"));
  EXPECT_EQ(LoadChanged("\"id\": 4,", "\"id\": 16777215,").code(),
            absl::StatusCode::kInvalidArgument);
  // Gaps as real files have them: ids that a trainer left out, and padding before added tokens.
  EXPECT_TRUE(LoadChanged("\"id\": 4,", "\"id\": 50000,").ok());
  EXPECT_TRUE(LoadChanged("\"b\": 1,", "\"b\": 1, \"c\": 90,").ok());
}

TEST_F(HuggingFaceTokenizerTest, CutsNothingOffAnIdThatIsTooLarge) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  // 2^32 + 1 is no token 1, and 2^64 - 1 none at all.
  for (const std::string id : {"4294967297", "18446744073709551615", "2147483648"}) {
    EXPECT_EQ(LoadChanged("\"b\": 1", "\"b\": " + id).code(), invalid) << id;
    EXPECT_EQ(LoadChanged("\"id\": 3", "\"id\": " + id).code(), invalid) << id;
    EXPECT_EQ(
        LoadChanged("\"post_processor\": null",
                    absl::StrCat(R"("post_processor": {"type": "BertProcessing", "cls": ["a", )",
                                 id, R"(], "sep": ["b", 1]})"))
            .code(),
        invalid)
        << id;
    EXPECT_EQ(LoadChanged("\"post_processor\": null",
                          absl::StrCat(R"("post_processor": {"type": "TemplateProcessing", )",
                                       R"("single": [{"SpecialToken": {"id": "a"}}], )",
                                       R"("special_tokens": {"a": {"ids": [)", id, "]}}}"))
                  .code(),
              invalid)
        << id;
    Write("tokenizer.json", kTokenizer);
    Write("generation_config.json", absl::StrCat(R"({"eos_token_id": [3, )", id, "]}"));
    EXPECT_EQ(Load().status().code(), invalid) << id;
    Write("generation_config.json", "{}");
  }
  Write("generation_config.json", R"({"eos_token_id": -1})");
  EXPECT_TRUE(Load().ok()) << "which stands for none";
}

TEST_F(HuggingFaceTokenizerTest, RefusesMoreStepsThanAnyTokenizerHas) {
  std::string steps = R"({"type": "NFC"})";
  for (int i = 0; i < 200; ++i) {
    steps += R"(, {"type": "NFC"})";
  }

  const absl::Status status = LoadChanged(
      "\"normalizer\": null",
      absl::StrCat(R"("normalizer": {"type": "Sequence", "normalizers": [)", steps, "]}"));

  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 128 steps in its normalizer"));
}

// A thousand for one, three times.
TEST_F(HuggingFaceTokenizerTest, RefusesStepsThatMakeATextGrowWithoutEnd) {
  const std::string thousand(1000, 'a');
  const std::string replace = absl::StrCat(
      R"({"type": "Replace", "pattern": {"String": "a"}, "content": ")", thousand, "\"}");
  const std::string three = absl::StrCat("[", replace, ", ", replace, ", ", replace, "]");
  ASSERT_TRUE(
      LoadChanged("\"normalizer\": null",
                  absl::StrCat(R"("normalizer": {"type": "Sequence", "normalizers": )", three, "}"))
          .ok());
  const absl::Status grown = (*Load())->Encode("a", {}).status();
  EXPECT_EQ(grown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(grown.message()),
              HasSubstr("bytes or more of a text that may become 288"));

  const absl::Status decoded =
      LoadChanged(R"("decoder": {"type": "ByteLevel"})",
                  absl::StrCat(R"("decoder": {"type": "Sequence", "decoders": )", three, "}"));
  EXPECT_EQ(decoded.code(), absl::StatusCode::kInvalidArgument);

  std::string levels = R"({"type": "ByteLevel", "use_regex": false})";
  for (int i = 0; i < 30; ++i) {
    levels += R"(, {"type": "ByteLevel", "use_regex": false})";
  }
  ASSERT_TRUE(LoadChanged(R"({"type": "ByteLevel", "add_prefix_space": false})",
                          absl::StrCat(R"({"type": "Sequence", "pretokenizers": [)", levels, "]}"))
                  .ok());
  EXPECT_EQ((*Load())->Encode("\u00e9\u00e9\u00e9\u00e9", {}).status().code(),
            absl::StatusCode::kInvalidArgument)
      << "each byte level doubles the bytes of the one before";
}

TEST_F(HuggingFaceTokenizerTest, RefusesAddedTokensThatAreTexts) {
  const absl::Status status = LoadChanged(
      "\"content\": \"<e>\"", absl::StrCat("\"content\": \"", std::string(513, 'x'), "\""));

  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the added token with id 3 has 513 bytes; at most 512"));
}

// Gemma lists its runs of spaces so. Texts have spaces there, which the normalizer marks.
TEST_F(HuggingFaceTokenizerTest, AddedTokensOfSpaceMarksAreSpaces) {
  constexpr char kMarks[] = R"({
      "added_tokens": [{"id": 0, "content": "<\u2581>", "special": true},
                       {"id": 4, "content": "\u2581\u2581", "special": false, "normalized": false}],
      "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
      "pre_tokenizer": null, "post_processor": null, "decoder": DECODER,
      "model": {"type": "BPE", "merges": [["\u2581", "\u2581"]],
                "vocab": {"<\u2581>": 0, "\u2581": 1, "a": 2, "b": 3, "\u2581\u2581": 4}}})";
  for (const char* decoder :
       {R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}]})",
        R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never"})"}) {
    Write("tokenizer.json", absl::StrReplaceAll(kMarks, {{"DECODER", decoder}}));
    const auto loaded = Load();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const Tokenizer& tokenizer = **loaded;

    EXPECT_THAT(*tokenizer.Encode("a  b", {}), ElementsAre(2, 4, 3));
    EXPECT_EQ(*tokenizer.Decode({2, 4, 3}, true), "a  b");
    EXPECT_EQ(tokenizer.TokenBytes(4, true), "  ");
    EXPECT_EQ(tokenizer.TokenBytes(0, false), "<\u2581>") << "special ones stay";
    EXPECT_EQ(tokenizer.TokenName(4), "\u2581\u2581");
    StreamDecoder stream(tokenizer, true);
    EXPECT_EQ(stream.Push(2), "a");
    EXPECT_EQ(stream.Push(4), "  ") << "which is what stop strings are compared with";
  }
}

// The alphabet's letters stand for bytes in names of the model's own alone.
TEST_F(HuggingFaceTokenizerTest, AddedTokensOfByteLevelOnesAreTheirText) {
  ASSERT_TRUE(LoadChanged(R"({"id": 4,)",
                          R"({"id": 5, "content": "\u00e9"}, {"id": 6, "content": " \u2581"},)"
                          R"( {"id": 4,)")
                  .ok());
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  EXPECT_EQ((*tokenizer)->TokenBytes(5, true), "\u00e9");
  EXPECT_EQ((*tokenizer)->TokenBytes(6, true), " \u2581");
  EXPECT_EQ((*tokenizer)->TokenBytes(4, false), "<|im_end|>");
}

TEST_F(HuggingFaceTokenizerTest, TokensOfSpaceMarksAddedToSentencePieceAreSpaces) {
  std::filesystem::copy_file(
      test_support::SourcePath(absl::StrCat(kGoldens, "spm_bpe/tokenizer.model")),
      directory_ + "/tokenizer.model");
  Write("tokenizer_config.json", R"({"added_tokens_decoder": {
      "1000": {"content": "\u2581\u2581", "special": false},
      "1001": {"content": "<\u2581>", "special": true}}})");
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  EXPECT_EQ((*tokenizer)->TokenBytes(1000, true), "  ");
  EXPECT_EQ((*tokenizer)->TokenBytes(1001, false), "<\u2581>");
}

TEST_F(HuggingFaceTokenizerTest, ReadsSentencePieceWithAddedTokens) {
  std::filesystem::copy_file(
      test_support::SourcePath(absl::StrCat(kGoldens, "spm_bpe/tokenizer.model")),
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

TEST_F(HuggingFaceTokenizerTest, BoundsTheIdsThatAreAddedToSentencePiece) {
  std::filesystem::copy_file(
      test_support::SourcePath(absl::StrCat(kGoldens, "spm_bpe/tokenizer.model")),
      directory_ + "/tokenizer.model");
  Write("config.json", R"({"bos_token_id": 123456})");
  const auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_NE((*tokenizer)->bos(), 123456) << "outside the vocabulary";

  Write("tokenizer_config.json",
        R"({"added_tokens_decoder": {"16777215": {"content": "<|im_end|>", "special": true}}})");
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HuggingFaceTokenizerTest, NewerSentencePieceModelsPutNoSpaceAfterASpecialToken) {
  std::filesystem::copy_file(
      test_support::SourcePath(absl::StrCat(kGoldens, "spm_bpe/tokenizer.model")),
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
