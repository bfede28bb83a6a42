// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/tokenizer/regex_dialect.h"

namespace lamina::model {
namespace {

std::vector<std::string> Matches(absl::string_view pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<TextRange> cut;
  EXPECT_TRUE(regex->Cut(text, {{0, text.size()}}, &cut).ok());
  std::vector<std::string> out;
  for (const TextRange& range : cut) {
    if (range.matched) {
      out.push_back(text.substr(range.begin, range.end - range.begin));
    }
  }
  return out;
}

using Strings = std::vector<std::string>;

TEST(RegexTest, MatchesWhiteSpaceAsOnigurumaDoes) {
  EXPECT_EQ(Matches(R"(\s+)", "a\u00A0\u2003b\u0085"), (Strings{"\u00A0\u2003", "\u0085"}));
  EXPECT_EQ(Matches(R"(\s)", "\u180E"), Strings{}) << "not White_Space, though PCRE2 thinks so";
}

TEST(RegexTest, KnowsCharactersNewerThanTheTablesOfTheLibrary) {
  EXPECT_EQ(Matches(R"(\p{L}+)", "a\U00031350\U0001E4D0"), (Strings{"a\U00031350\U0001E4D0"}));
  EXPECT_EQ(Matches(R"([^\p{L}]+)", "a\U00031350 "), Strings{" "});
  EXPECT_EQ(Matches(R"(\P{L}+)", "a\U00031350 "), Strings{" "});
  EXPECT_EQ(Matches(R"(\d+)", "\U00010D40"), Strings{"\U00010D40"});
}

TEST(RegexTest, ReadsRubyEscapes) {
  EXPECT_EQ(Matches(R"(\u00e9)", "e\u00e9"), Strings{"\u00e9"});
  EXPECT_EQ(Matches(R"(^b$)", "a\nb\nc"), Strings{"b"}) << "^ and $ mean lines";
  EXPECT_EQ(Matches(R"(\p{^L}+)", "a1"), Strings{"1"});
}

TEST(RegexTest, SkipsEmptyMatches) { EXPECT_EQ(Matches("x*", "\u00e9xx\u00e9"), Strings{"xx"}); }

TEST(RegexTest, MatchesEachRangeAsIfItWereTheWholeText) {
  const auto regex = Regex::Compile(R"(\s+(?!\S))");
  ASSERT_TRUE(regex.ok());
  std::vector<TextRange> cut;

  ASSERT_TRUE(regex->Cut("  x", {{0, 2}, {2, 3}}, &cut).ok());

  ASSERT_EQ(cut.size(), 2u);
  EXPECT_TRUE(cut[0].matched);
  EXPECT_EQ(cut[0].end, 2u);
}

TEST(RegexTest, RefusesWhatIsNoPattern) {
  EXPECT_EQ(Regex::Compile("(").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Regex::Compile("a\\").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RegexTest, RefusesConstructsThatMeanSomethingElseHere) {
  for (const char* pattern : {"[a[bc]]", R"([\p{L}&&[^a]])", R"(\h)", R"(\p{N}{1,3}+)", "(?m)a.b",
                              R"([\W])", R"(\pL)", R"(\u12)"}) {
    EXPECT_EQ(Regex::Compile(pattern).status().code(), absl::StatusCode::kUnimplemented) << pattern;
  }
}

TEST(RegexTest, GivesUpOnEndlessBacktracking) {
  const auto regex = Regex::Compile("(a+)+$");
  ASSERT_TRUE(regex.ok());
  std::vector<TextRange> cut;
  const std::string text(64, 'a');

  const absl::Status status = regex->Cut(text + "b", {{0, 65}}, &cut);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "no reason to send it again";
  EXPECT_NE(status.message().find("gave up"), absl::string_view::npos) << status;
}

TEST(RegexTest, QuotesText) {
  EXPECT_EQ(Matches(QuotePattern("a.b*[\u2581"), "a.b*[\u2581 axb"), Strings{"a.b*[\u2581"});
}

}  // namespace
}  // namespace lamina::model
