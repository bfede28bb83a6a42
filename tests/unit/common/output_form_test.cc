// SPDX-License-Identifier: Apache-2.0
#include "common/output_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lamina {
namespace {

using Kind = OutputForm::Kind;
using ::testing::HasSubstr;

std::string Times(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

bool IsTaken(Kind kind, const std::string& text) { return CheckOutputForm({kind, text}).ok(); }

std::string Refusal(Kind kind, const std::string& text) {
  return std::string(CheckOutputForm({kind, text}).message());
}

TEST(OutputFormTest, SixtyFourBracketsMayBeWithinEachOther) {
  EXPECT_TRUE(IsTaken(Kind::kJsonSchema, Times("[", 64) + Times("]", 64)));
  EXPECT_THAT(Refusal(Kind::kJsonSchema, Times("[", 65) + Times("]", 65)), HasSubstr("deeper"));
  EXPECT_TRUE(IsTaken(Kind::kRegex, Times("(", 64) + "a" + Times(")", 64)));
  EXPECT_THAT(Refusal(Kind::kRegex, Times("(", 65) + "a" + Times(")", 65)), HasSubstr("65 deep"));
  EXPECT_TRUE(IsTaken(Kind::kGrammar, "root ::= " + Times("(", 64) + "\"a\"" + Times(")", 64)));
  EXPECT_THAT(Refusal(Kind::kGrammar, "root ::= " + Times("(", 65)), HasSubstr("65 deep"));
  EXPECT_THAT(Refusal(Kind::kAny, std::string(kOutputFormBytesMax + 1, 'a')), HasSubstr("bytes"));
}

TEST(OutputFormTest, BracketsThatCloseNothingDoNotCount) {
  EXPECT_FALSE(IsTaken(Kind::kJsonSchema, Times(R"({"}}}":)", 65)));
  EXPECT_FALSE(IsTaken(Kind::kStructuralTag, Times(R"({"]":[)", 65)));
  for (const char* group : {"([)]", "(\\)", "(}", "([\\])]"}) {
    EXPECT_FALSE(IsTaken(Kind::kRegex, Times(group, 65))) << group;
  }
  for (const char* group : {"([)]", "(\")\"", "(\"\\\")\"", "(# )\n", "(# \"\n", "(}"}) {
    EXPECT_FALSE(IsTaken(Kind::kGrammar, "root ::= " + Times(group, 65))) << group;
  }
  EXPECT_FALSE(IsTaken(Kind::kGrammar, "root[capture=\"]\"] ::= " + Times("(", 65)));
}

TEST(OutputFormTest, StringsOfJsonMayBeRegularExpressions) {
  EXPECT_FALSE(IsTaken(Kind::kJsonSchema, R"({"pattern":")" + Times("(", 65) + R"("})"));
  EXPECT_FALSE(IsTaken(Kind::kJsonSchema, R"({"pattern":")" + Times("([)]", 65) + R"("})"));
  EXPECT_FALSE(IsTaken(Kind::kJsonSchema, R"({"pattern":")" + Times("\\u0028", 65) + R"("})"));
  EXPECT_FALSE(
      IsTaken(Kind::kStructuralTag, R"({"grammar":"root ::= )" + Times(R"((\")\")", 65) + R"("})"));
  EXPECT_TRUE(IsTaken(Kind::kJsonSchema, R"({"pattern":")" + Times("\\\\(", 65) + R"("})"));
}

TEST(OutputFormTest, WhatIsNotWithinEachOtherMayBeMuch) {
  EXPECT_TRUE(IsTaken(Kind::kRegex, Times("(a)", 1000) + Times("[(]", 1000) + Times("\\(", 1000)));
  EXPECT_TRUE(
      IsTaken(Kind::kGrammar, "root ::= " + Times("(\"(\" [(])\n", 1000) + Times("# (((\n", 1000)));
  EXPECT_TRUE(IsTaken(Kind::kJsonSchema, "[" + Times("{\"a(b)\":[]},", 1000) + "0]"));
}

}  // namespace
}  // namespace lamina
