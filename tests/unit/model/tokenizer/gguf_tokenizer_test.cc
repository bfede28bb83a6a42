// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/gguf_writer.h"

namespace lamina::model {
namespace {

using test_support::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const GgufWriter& writer) {
  const std::string bytes = writer.Finish();
  const auto file = GgufFile::Parse(
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
  EXPECT_TRUE(file.ok()) << file.status();
  return LoadGgufTokenizer(**file);
}

// "<s>", "a", "b", "ab", "<|im_end|>", "Ġ", "  ".
GgufWriter Bpe(const std::string& turn_end = "<|im_end|>", int32_t type_of_end = 3) {
  GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddStrings("tokenizer.ggml.tokens", {"<s>", "a", "b", "ab", turn_end, "\u0120", "  "});
  writer.AddInts("tokenizer.ggml.token_type", {3, 1, 1, 1, type_of_end, 1, 4});
  return writer;
}

GgufWriter GoodBpe(GgufWriter writer = Bpe()) {
  writer.AddStrings("tokenizer.ggml.merges", {"a b"});
  writer.AddString("tokenizer.ggml.pre", "gpt-2");
  writer.AddUint("tokenizer.ggml.bos_token_id", 0);
  writer.AddUint("tokenizer.ggml.eos_token_id", 0);
  return writer;
}

TEST(GgufTokenizerTest, EncodesByteLevelBpe) {
  GgufWriter writer = GoodBpe();
  writer.AddBool("tokenizer.ggml.add_bos_token", true);
  writer.AddBool("tokenizer.ggml.add_eos_token", true);
  writer.AddString("tokenizer.chat_template", "{{ x }}");
  const auto tokenizer = Load(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  EXPECT_THAT(*(*tokenizer)->Encode("ab  b<|im_end|>", {}), ElementsAre(0, 3, 6, 2, 4, 0));
  EXPECT_THAT(*(*tokenizer)->Encode(" b", {.add_special = false}), ElementsAre(5, 2));
  EXPECT_EQ(*(*tokenizer)->Decode({0, 3, 5, 2, 6, 4}, true), "ab b  ");
  EXPECT_EQ(*(*tokenizer)->Decode({0, 3, 5}, false), "<s>ab ");
  EXPECT_THAT((*tokenizer)->end_tokens(), ElementsAre(0, 4));
  EXPECT_EQ((*tokenizer)->chat_template(), "{{ x }}");
  EXPECT_EQ((*tokenizer)->Find("\u0120"), 5);
  EXPECT_EQ((*tokenizer)->Find("nothing"), -1);
}

TEST(GgufTokenizerTest, ATemplateForToolsIsPartOfTheOne) {
  GgufWriter writer = GoodBpe();
  writer.AddString("tokenizer.chat_template", "{{ x }}");
  writer.AddString("tokenizer.chat_template.tool_use", "{{ y }}");
  const auto tokenizer = Load(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  EXPECT_EQ((*tokenizer)->chat_template(),
            "{% if tools %}\n{{ y }}{%+ else %}\n{{ x }}{%+ endif %}");
}

// Phi-3's files call the end of a turn a token of the user's.
TEST(GgufTokenizerTest, WhatIsNamedAsTheEndOfATurnEndsWhateverItsType) {
  for (const int32_t type : {1, 4}) {
    const auto tokenizer = Load(GoodBpe(Bpe("<|end|>", type)));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

    EXPECT_THAT((*tokenizer)->end_tokens(), ElementsAre(0, 4));
    EXPECT_THAT(*(*tokenizer)->Encode("ab<|end|>", {}), ElementsAre(3, 4));
    EXPECT_EQ(*(*tokenizer)->Decode({3, 4}, true), "ab");
  }
}

TEST(GgufTokenizerTest, ReplacesInvalidUtf8) {
  const auto tokenizer = Load(GoodBpe());
  ASSERT_TRUE(tokenizer.ok());

  EXPECT_EQ(*(*tokenizer)
                 ->Encode("a\xFF"
                          "b",
                          {}),
            *(*tokenizer)
                 ->Encode("a\uFFFD"
                          "b",
                          {}));
}

TEST(GgufTokenizerTest, ExplainsAnUnknownKind) {
  GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "bert");

  const absl::Status status = Load(writer).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"bert\"; known ones: gpt2"));
}

TEST(GgufTokenizerTest, ExplainsAFileWithoutTokenizer) {
  EXPECT_EQ(Load(GgufWriter()).status().code(), absl::StatusCode::kNotFound);
}

TEST(GgufTokenizerTest, ExplainsAnUnknownPreTokenizer) {
  GgufWriter writer = Bpe();
  writer.AddStrings("tokenizer.ggml.merges", {"a b"});
  writer.AddString("tokenizer.ggml.pre", "no-such");

  const absl::Status status = Load(writer).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no-such"));
}

struct BadCase {
  const char* expected;  // In the message.
  std::function<void(GgufWriter&)> spoil;
};

TEST(GgufTokenizerTest, RefusesSettingsThatContradictEachOther) {
  const BadCase cases[] = {
      {"bos_token_id is 7",
       [](GgufWriter& w) {
         w.AddStrings("tokenizer.ggml.merges", {"a b"});
         w.AddUint("tokenizer.ggml.bos_token_id", 7);
       }},
      {"\"left right\" expected",
       [](GgufWriter& w) { w.AddStrings("tokenizer.ggml.merges", {"ab"}); }},
      {"merge 0", [](GgufWriter& w) { w.AddStrings("tokenizer.ggml.merges", {"b b"}); }},
  };
  for (const BadCase& bad : cases) {
    GgufWriter writer = Bpe();
    writer.AddString("tokenizer.ggml.pre", "gpt-2");
    bad.spoil(writer);

    const absl::Status status = Load(writer).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.expected;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.expected));
  }
}

TEST(GgufTokenizerTest, RefusesListsOfDifferentLengths) {
  GgufWriter types;
  types.AddString("tokenizer.ggml.model", "gpt2");
  types.AddStrings("tokenizer.ggml.tokens", {"a", "b"});
  types.AddInts("tokenizer.ggml.token_type", {1});
  EXPECT_EQ(Load(types).status().code(), absl::StatusCode::kInvalidArgument);

  GgufWriter scores;
  scores.AddString("tokenizer.ggml.model", "llama");
  scores.AddStrings("tokenizer.ggml.tokens", {"a", "b"});
  scores.AddFloats("tokenizer.ggml.scores", {0.0f});
  EXPECT_EQ(Load(scores).status().code(), absl::StatusCode::kInvalidArgument);
}

GgufWriter SentencePiece(std::vector<int32_t> types) {
  GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "llama");
  writer.AddStrings("tokenizer.ggml.tokens", {"<unk>", "<s>", "\u2581", "a",
                                              "\u2581"
                                              "a",
                                              "[PAD]"});
  writer.AddFloats("tokenizer.ggml.scores", {0, 0, -2, -3, -1, 0});
  writer.AddInts("tokenizer.ggml.token_type", types);
  writer.AddUint("tokenizer.ggml.bos_token_id", 1);
  return writer;
}

TEST(GgufTokenizerTest, EncodesSentencePieceByScore) {
  const auto tokenizer = Load(SentencePiece({2, 3, 1, 1, 1, 3}));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  EXPECT_THAT(*(*tokenizer)->Encode("a a", {}), ElementsAre(1, 4, 4));
  EXPECT_THAT(*(*tokenizer)->Encode("aa", {.add_special = false}), ElementsAre(4, 3));
  EXPECT_EQ(*(*tokenizer)->Decode({1, 4, 4}, true), "a a");
  EXPECT_EQ(*(*tokenizer)->Decode({1, 4, 4}, false), "<s> a a");
}

// Fine-tuned models have ChatML's marks so. The text behind each is one by itself, as in llama.cpp.
TEST(GgufTokenizerTest, UserDefinedTokensCutTheTextBeforeItsSpaceIsPut) {
  GgufWriter writer = SentencePiece({2, 3, 1, 1, 1, 4});
  const auto tokenizer = Load(writer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  for (const bool parse_special : {false, true}) {
    EXPECT_THAT(
        *(*tokenizer)
             ->Encode("[PAD]aa[PAD] a", {.add_special = false, .parse_special = parse_special}),
        ElementsAre(5, 4, 3, 5, 2, 4))
        << parse_special;
  }
  EXPECT_EQ(*(*tokenizer)->Decode({5, 4, 3}, true), "[PAD] aa");

  writer.AddBool("tokenizer.ggml.add_space_prefix", false);
  const auto without = Load(writer);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_THAT(*(*without)->Encode("[PAD]aa[PAD] a", {.add_special = false}),
              ElementsAre(5, 3, 3, 5, 4));
}

// Converters write Gemma's runs of U+2581 with spaces.
TEST(GgufTokenizerTest, UserDefinedPiecesOfSpacesAreFound) {
  const auto load = [](const std::string& piece, int32_t type) {
    GgufWriter writer;
    writer.AddString("tokenizer.ggml.model", "llama");
    writer.AddStrings("tokenizer.ggml.tokens",
                      {"<unk>", "<s>", "\u2581", "a", "  ", piece, "\u2581\u2581\u2581"});
    writer.AddFloats("tokenizer.ggml.scores", {0, 0, -2, -3, -1000, -1000, -1});
    writer.AddInts("tokenizer.ggml.token_type", {2, 3, 1, 1, 4, type, 1});
    writer.AddUint("tokenizer.ggml.bos_token_id", 1);
    writer.AddBool("tokenizer.ggml.add_space_prefix", false);
    return Load(writer);
  };
  const auto tokenizer = load("   ", 4);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();

  EXPECT_THAT(*(*tokenizer)->Encode("a  a", {.add_special = false}), ElementsAre(3, 4, 3));
  EXPECT_EQ(*(*tokenizer)->Decode({3, 4, 3}, true), "a  a");
  EXPECT_EQ((*tokenizer)->TokenBytes(5, true), "   ") << "its marked name is another's";

  const auto twice = load("\u2581\u2581", 1);
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_EQ((*twice)->TokenName(4), "  ");
  EXPECT_EQ((*twice)->TokenBytes(4, true), (*twice)->TokenBytes(5, true));
}

// transformers' files of Phi-3 say so of each token; GGUF has no place for it.
TEST(GgufTokenizerTest, Phi3sSpecialTokensTakeTheWhiteSpaceBehindThem) {
  const auto encode = [](const std::string& architecture, int32_t type) {
    GgufWriter writer;
    writer.AddString("general.architecture", architecture);
    writer.AddString("tokenizer.ggml.model", "llama");
    writer.AddStrings("tokenizer.ggml.tokens",
                      {"<unk>", "<s>", "\u2581", "\u2581!", "!", "<|user|>", "<|endoftext|>"});
    writer.AddFloats("tokenizer.ggml.scores", {0, 0, -2, -1, -3, 0, 0});
    writer.AddInts("tokenizer.ggml.token_type", {2, 3, 1, 1, 1, type, 3});
    writer.AddUint("tokenizer.ggml.bos_token_id", 1);
    const auto tokenizer = Load(writer);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *(*tokenizer)->Encode("<s> !<|user|>\n !<|endoftext|> !", {.add_special = false});
  };

  for (const int32_t type : {3, 4}) {
    EXPECT_THAT(encode("phi3", type), ElementsAre(1, 2, 3, 5, 3, 6, 2, 3)) << type;
  }
  EXPECT_THAT(encode("llama", 3), ElementsAre(1, 2, 3, 5, 2, 0, 3, 6, 2, 3));
}

TEST(GgufTokenizerTest, LeavesTheLeadingSpaceOutWhenToldTo) {
  GgufWriter writer = SentencePiece({2, 3, 1, 1, 1, 3});
  writer.AddBool("tokenizer.ggml.add_space_prefix", false);
  const auto tokenizer = Load(writer);
  ASSERT_TRUE(tokenizer.ok());

  EXPECT_THAT(*(*tokenizer)->Encode("a a", {}), ElementsAre(1, 3, 4));
  EXPECT_EQ(*(*tokenizer)->Decode({4}, true), " a");
}

TEST(GgufTokenizerTest, ToleratesSeveralUnknownTokens) {
  EXPECT_TRUE(Load(SentencePiece({2, 3, 1, 1, 1, 2})).ok());
}

TEST(GgufTokenizerTest, RefusesSentencePieceWithoutUnknownToken) {
  EXPECT_EQ(Load(SentencePiece({3, 3, 1, 1, 1, 3})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::model
