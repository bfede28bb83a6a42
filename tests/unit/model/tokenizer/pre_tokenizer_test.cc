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
  const auto named = MakeNamedPreTokenizer("default");
  ASSERT_TRUE(named.ok());
  const auto list = named->pre_tokenizer.Apply("ab, 12345", true);
  ASSERT_TRUE(list.ok());

  std::vector<std::string> pieces;
  for (const TextRange& piece : list->pieces) {
    pieces.push_back(list->text.substr(piece.begin, piece.end - piece.begin));
  }
  EXPECT_THAT(pieces, ElementsAre("ab", ",", "\u0120", "123", "45"));
}

}  // namespace
}  // namespace lamina::model
