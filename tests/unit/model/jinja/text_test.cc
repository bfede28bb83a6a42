// SPDX-License-Identifier: Apache-2.0
#include "model/jinja/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/jinja/operators.h"

namespace lamina::jinja {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(JinjaTextTest, StripsUnicodesWhiteSpaceFromEitherSide) {
  EXPECT_EQ(StripSpace("\u2003\t a b\u00a0\x1c", kBoth), "a b");
  EXPECT_EQ(StripSpace(" a ", kLeft), "a ");
  EXPECT_EQ(StripSpace(" a ", kRight), " a");
  EXPECT_EQ(StripSpace("\u200b a", kLeft), "\u200b a");  // No white space, for all its name.
  EXPECT_EQ(StripSpace(" \n", kBoth), "");
}

TEST(JinjaTextTest, StripsCharactersOfASet) {
  EXPECT_EQ(StripCharacters("éxé", "é", kBoth), "x");
  EXPECT_EQ(StripCharacters("abcba", "ab", kLeft), "cba");
}

TEST(JinjaTextTest, FindsLongTextsFromBothEnds) {
  const std::string needle = std::string(100, 'a') + "b";
  const std::string text = "xx" + needle + "yyy" + needle + "z";
  EXPECT_EQ(FindText(text, needle), 2u);
  EXPECT_EQ(FindLastText(text, needle), 2u + 101u + 3u);
  EXPECT_EQ(FindText(text, needle + "c"), absl::string_view::npos);
  EXPECT_EQ(FindLastText(text, needle + "c"), absl::string_view::npos);
  EXPECT_THAT(Split(text, needle, -1), ElementsAre("xx", "yyy", "z"));
  EXPECT_THAT(ReverseSplit(text, needle, -1), ElementsAre("xx", "yyy", "z"));
  EXPECT_THAT(ReverseSplit(text, needle, 1), ElementsAre("xx" + needle + "yyy", "z"));
  EXPECT_EQ(FindText("ab", ""), 0u);
  EXPECT_EQ(FindLastText("ab", ""), 2u);
}

// The plain search compares for hours.
TEST(JinjaTextTest, FindsInLinearTimeWhateverTheTextsAre) {
  const std::string text(16'000'000, 'a');
  const std::string needle = std::string(8'000'000, 'a') + "b";
  EXPECT_EQ(FindText(text, needle), absl::string_view::npos);
  EXPECT_EQ(FindLastText(text, "b" + std::string(8'000'000, 'a')), absl::string_view::npos);
  EXPECT_EQ(ReverseSplit(text, needle, -1).size(), 1u);
}

TEST(JinjaTextTest, CountsAndPlacesCharacters) {
  EXPECT_EQ(CountCharacters("aé漢🎉"), 4u);
  EXPECT_EQ(ByteOffset("aé漢", 2), 3u);
  EXPECT_EQ(ByteOffset("aé", 9), 3u);
}

TEST(JinjaTextTest, SplitsAsPythonDoes) {
  EXPECT_THAT(SplitSpace("  a  b c ", -1), ElementsAre("a", "b", "c"));
  EXPECT_THAT(SplitSpace(" a b c ", 1), ElementsAre("a", "b c "));
  EXPECT_THAT(SplitSpace("  ", -1), IsEmpty());
  EXPECT_THAT(ReverseSplitSpace(" a b c ", 1), ElementsAre(" a b", "c"));
  EXPECT_THAT(Split("a,b,,c", ",", -1), ElementsAre("a", "b", "", "c"));
  EXPECT_THAT(Split("a,b,c", ",", 1), ElementsAre("a", "b,c"));
  EXPECT_THAT(ReverseSplit("a,b,c", ",", 1), ElementsAre("a,b", "c"));
  EXPECT_THAT(SplitLines("a\r\nb\rc\u2028d\n", false), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(SplitLines("a\n\nb", true), ElementsAre("a\n", "\n", "b"));
}

TEST(JinjaTextTest, WritesFloatsAsPythonDoes) {
  EXPECT_EQ(FloatRepr(0.1), "0.1");
  EXPECT_EQ(FloatRepr(3.0), "3.0");
  EXPECT_EQ(FloatRepr(1e15), "1000000000000000.0");
  EXPECT_EQ(FloatRepr(1e16), "1e+16");
  EXPECT_EQ(FloatRepr(1e-4), "0.0001");
  EXPECT_EQ(FloatRepr(1.5e-5), "1.5e-05");
  EXPECT_EQ(FloatRepr(-0.0), "-0.0");
  EXPECT_EQ(FloatRepr(1e300 * 1e300), "inf");
}

}  // namespace
}  // namespace lamina::jinja
