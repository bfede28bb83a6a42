// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizer/pre_tokenizer_catalog.h"

namespace lamina::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Pieces(std::vector<PreTokenizerStep> steps, const std::string& text,
                                bool at_start = true) {
  const auto list = PreTokenizer(std::move(steps)).Apply(text, at_start);
  EXPECT_TRUE(list.ok()) << list.status();
  std::vector<std::string> out;
  for (const TextRange& piece : list->pieces) {
    out.push_back(list->text.substr(piece.begin, piece.end - piece.begin));
  }
  return out;
}

std::vector<std::string> Split(SplitBehavior behavior, const std::string& text) {
  std::vector<PreTokenizerStep> steps;
  steps.emplace_back(MakeSplit("-", behavior).value());
  return Pieces(std::move(steps), text);
}

TEST(PreTokenizerTest, TreatsMatchesAsToldTo) {
  EXPECT_THAT(Split(SplitBehavior::kRemoved, "a--b-"), ElementsAre("a", "b"));
  EXPECT_THAT(Split(SplitBehavior::kIsolated, "a--b-"), ElementsAre("a", "-", "-", "b", "-"));
  EXPECT_THAT(Split(SplitBehavior::kContiguous, "a--b-"), ElementsAre("a", "--", "b", "-"));
  EXPECT_THAT(Split(SplitBehavior::kMergedWithPrevious, "a--b-"), ElementsAre("a-", "-", "b-"));
  EXPECT_THAT(Split(SplitBehavior::kMergedWithNext, "a--b-"), ElementsAre("a", "-", "-b", "-"));
}

TEST(PreTokenizerTest, MarksSpacesAndCutsBeforeThem) {
  const auto metaspace = [](MetaspaceStep::Prepend prepend, bool at_start) {
    std::vector<PreTokenizerStep> steps;
    steps.emplace_back(MetaspaceStep{.mark = "_", .prepend = prepend});
    return Pieces(std::move(steps), "a b  c", at_start);
  };

  EXPECT_THAT(metaspace(MetaspaceStep::Prepend::kAlways, false),
              ElementsAre("_a", "_b", "_", "_c"));
  EXPECT_THAT(metaspace(MetaspaceStep::Prepend::kFirst, false), ElementsAre("a", "_b", "_", "_c"));
  EXPECT_THAT(metaspace(MetaspaceStep::Prepend::kFirst, true), ElementsAre("_a", "_b", "_", "_c"));
  EXPECT_THAT(metaspace(MetaspaceStep::Prepend::kNever, true), ElementsAre("a", "_b", "_", "_c"));
}

TEST(PreTokenizerTest, SpellsBytes) {
  std::vector<PreTokenizerStep> steps;
  steps.emplace_back(PrefixSpaceStep{});
  steps.emplace_back(ByteLevelStep{});

  EXPECT_THAT(Pieces(std::move(steps), "\u00e9"), ElementsAre("\u0120\u00c3\u00a9"));
}

std::vector<std::string> NamedPieces(const std::string& name, const std::string& text) {
  const auto named = MakeNamedPreTokenizer(name);
  EXPECT_TRUE(named.ok()) << named.status();
  std::vector<std::string> out;
  if (!named.ok()) {
    return out;
  }
  const auto list = named->pre_tokenizer.Apply(text, true);
  EXPECT_TRUE(list.ok()) << list.status();
  for (const TextRange& piece : list->pieces) {
    out.push_back(list->text.substr(piece.begin, piece.end - piece.begin));
  }
  return out;
}

TEST(PreTokenizerCatalogTest, MakesEveryNameItLists) {
  for (const std::string& name : KnownPreTokenizers()) {
    EXPECT_TRUE(MakeNamedPreTokenizer(name).ok()) << name;
  }
}

TEST(PreTokenizerCatalogTest, ExplainsAnUnknownName) {
  const absl::Status status = MakeNamedPreTokenizer("qwen3").status();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unknown pre-tokenizer \"qwen3\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("did you mean \"qwen2\"?"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("known ones: command-r, "));
}

TEST(PreTokenizerCatalogTest, DefaultCutsPunctuationAndThreeDigits) {
  EXPECT_THAT(NamedPieces("default", "ab, 12345"), ElementsAre("ab", ",", "\u0120", "123", "45"));
}

// GGUF files of Pythia bear the name of a later model that took over GPT-NeoX's tokenizer.
TEST(PreTokenizerCatalogTest, PythiaIsCutAsGptNeox) {
  const std::string text = "It's ab, 12345  x";

  EXPECT_THAT(NamedPieces("olmo", text),
              ElementsAre("It", "'s", "\u0120ab", ",", "\u012012345", "\u0120", "\u0120x"));
  EXPECT_EQ(NamedPieces("olmo", text), NamedPieces("gpt-neox", text));
  EXPECT_EQ(MakeNamedPreTokenizer("olmo")->normalizer.Apply("e\u0301").value(), "\u00e9");
}

TEST(PreTokenizerCatalogTest, DistilledQwenIsCutAsQwen2) {
  const std::string text = "IT'S ab, 12345\n\nx";

  EXPECT_THAT(NamedPieces("deepseek-r1-qwen", text),
              ElementsAre("IT", "'S", "\u0120ab", ",", "\u0120", "1", "2", "3", "4", "5",
                          "\u010a\u010a", "x"));
  EXPECT_EQ(NamedPieces("deepseek-r1-qwen", text), NamedPieces("qwen2", text));
}

TEST(PreTokenizerCatalogTest, RelativesOfLlama3AreCutAsItIs) {
  const std::string text = "IT'S ab, 12345\n\nx";

  for (const char* name : {"falcon3", "smaug-bpe", "dbrx"}) {
    EXPECT_THAT(NamedPieces(name, text), ElementsAre("IT", "'S", "\u0120ab", ",", "\u0120", "123",
                                                     "45", "\u010a\u010a", "x"))
        << name;
    EXPECT_EQ(NamedPieces(name, text), NamedPieces("llama-bpe", text)) << name;
  }
  EXPECT_TRUE(MakeNamedPreTokenizer("falcon3")->add_bos);
  EXPECT_FALSE(MakeNamedPreTokenizer("smaug-bpe")->add_bos);
}

TEST(PreTokenizerCatalogTest, TekkenCutsBeforeCapitals) {
  EXPECT_THAT(NamedPieces("tekken", "HTTPServer getURL don't a//\n12"),
              ElementsAre("HTTPServer", "\u0120get", "URL", "\u0120don", "'t", "\u0120a",
                          "//\u010a", "1", "2"));
  EXPECT_TRUE(MakeNamedPreTokenizer("tekken")->ignore_merges);
  EXPECT_TRUE(MakeNamedPreTokenizer("tekken")->add_bos);
}

TEST(PreTokenizerCatalogTest, Gpt4oKeepsContractionsInWordsAndCutsThreeDigits) {
  EXPECT_THAT(NamedPieces("gpt-4o", "HTTPServer getURL DON'T don't a//\n12345"),
              ElementsAre("HTTPServer", "\u0120get", "URL", "\u0120DON'T", "\u0120don't", "\u0120a",
                          "//\u010a", "123", "45"));
  EXPECT_FALSE(MakeNamedPreTokenizer("gpt-4o")->ignore_merges);
  EXPECT_FALSE(MakeNamedPreTokenizer("gpt-4o")->add_bos);
}

}  // namespace
}  // namespace lamina::model
