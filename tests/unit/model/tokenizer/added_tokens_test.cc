// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace lamina::model {
namespace {

using ::testing::ElementsAre;

// Each segment as "id:text"; text between tokens has id -1.
std::vector<std::string> Split(const AddedTokens& tokens, const std::string& text,
                               bool special = true) {
  std::vector<std::string> out;
  for (const AddedTokenSegment& segment : tokens.Split(text, special)) {
    out.push_back(
        absl::StrCat(segment.id, ":", text.substr(segment.begin, segment.end - segment.begin)));
  }
  return out;
}

TEST(AddedTokensTest, TakesTheLongestOfTheLeftmost) {
  const AddedTokens tokens({{.content = "<a", .id = 1}, {.content = "<a>", .id = 2}});

  EXPECT_THAT(Split(tokens, "x<a><a"), ElementsAre("-1:x", "2:<a>", "1:<a"));
  EXPECT_THAT(Split(tokens, ""), ElementsAre());
}

TEST(AddedTokensTest, SpecialOnesAreTextUnlessAskedFor) {
  const AddedTokens tokens(
      {{.content = "<s>", .id = 1, .special = true}, {.content = "<w>", .id = 2}});

  EXPECT_THAT(Split(tokens, "<s><w>", false), ElementsAre("-1:<s>", "2:<w>"));
}

TEST(AddedTokensTest, ObeysTheFlags) {
  const AddedTokens left({{.content = "L", .id = 1, .lstrip = true}});
  const AddedTokens right({{.content = "R", .id = 1, .rstrip = true}});
  const AddedTokens word({{.content = "w", .id = 1, .single_word = true}});

  EXPECT_THAT(Split(left, "a \u3000L b"), ElementsAre("-1:a", "1: \u3000L", "-1: b"));
  EXPECT_THAT(Split(right, "a R \n b"), ElementsAre("-1:a ", "1:R \n ", "-1:b"));
  EXPECT_THAT(Split(word, "w,w ww \u00e9w"), ElementsAre("1:w", "-1:,", "1:w", "-1: ww \u00e9w"));
}

TEST(AddedTokensTest, SpaceThatATokenTookIsNotTakenAgain) {
  const AddedTokens tokens(
      {{.content = "R", .id = 1, .rstrip = true}, {.content = "L", .id = 2, .lstrip = true}});

  EXPECT_THAT(Split(tokens, "R  L"), ElementsAre("1:R  ", "2:L"));
}

TEST(AddedTokensTest, LeavesEmptyContentsOut) {
  EXPECT_THAT(Split(AddedTokens({{.content = "", .id = 1}}), "ab"), ElementsAre("-1:ab"));
}

}  // namespace
}  // namespace lamina::model
