// SPDX-License-Identifier: Apache-2.0
//
// Schemas as they are compiled: which are refused, and what becomes of the lengths of strings.

#include "model/grammar/schema_keywords.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "model/grammar/text_patterns.h"
#include "tests/unit/model/grammar/letter_tokenizer.h"

namespace lamina::model {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

absl::StatusOr<std::shared_ptr<const Grammar>> Compiled(OutputForm::Kind kind,
                                                        const std::string& text) {
  static const auto* const tokens = new LetterTokenizer({"\t\"", "\": "});
  static GrammarCompiler* const compiler = [] {
    auto made = MakeGrammarCompiler(*tokens, tokens->vocabulary_size());
    LAMINA_CHECK(made.ok());
    return made->release();
  }();
  return compiler->Compile({kind, text});
}

// Whether `text` is a whole output.
bool Takes(const Grammar& grammar, const std::string& text) {
  const auto state = grammar.Begin();
  for (const char byte : text) {
    if (!state->Accept(static_cast<TokenId>(1 + static_cast<unsigned char>(byte)))) {
      return false;
    }
  }
  return state->Accept(0);
}

// XGrammar passes over empty names, so that what it comes to would not have been looked at.
TEST(SchemaReferenceTest, APlaceThatIsNotThereIsRefused) {
  for (const char* reference :
       {"#/$defs/d/", "#//$defs/d", "#/$defs//d", "#/", "#/$defs/d/items"}) {
    Json schema = {{"$ref", reference}};
    schema["$defs"]["d"] = {{"type", "array"}, {"uniqueItems", true}};
    const auto grammar = Compiled(OutputForm::Kind::kJsonSchema, schema.dump());
    EXPECT_THAT(std::string(grammar.status().message()),
                HasSubstr(absl::StrCat(reference, " is no place in this schema")));
  }
}

struct Bounded {
  const char* schema;
  std::vector<std::string> fitting;
  std::vector<std::string> others;
};
class StringLengthTest : public ::testing::TestWithParam<Bounded> {};

// JSON has control characters behind a backslash only.
TEST_P(StringLengthTest, IsKeptWithoutControlCharacters) {
  const auto grammar = Compiled(OutputForm::Kind::kJsonSchema, GetParam().schema);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const std::string& text : GetParam().fitting) {
    EXPECT_TRUE(Takes(**grammar, text)) << text;
  }
  for (const std::string& text : GetParam().others) {
    EXPECT_FALSE(Takes(**grammar, text)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, StringLengthTest,
    ::testing::Values(
        Bounded{R"({"type":"string","maxLength":3})",
                {"\"\"", "\"abc\"", "\"\x7f]n\"", "\"\u00e9\U0001f600-\""},
                {"\"abcd\"", "\"\t\"", "\"a\x1f\"", "\"\x01\"", "\"\n\"", "\"a\"\"", "\"\\n\"",
                 std::string("\"\0\"", 3)}},
        Bounded{R"({"type":"string","minLength":2})",
                {"\"ab\"", "\"abcdefgh\""},
                {"\"a\"", "\"\"", "\"ab\t\""}},
        Bounded{R"({"type":"string","minLength":200,"maxLength":300})",
                {"\"" + std::string(200, 'a') + "\"", "\"" + std::string(300, 'b') + "\""},
                {"\"" + std::string(199, 'a') + "\"", "\"" + std::string(301, 'a') + "\"",
                 "\"" + std::string(200, '\t') + "\""}},
        Bounded{R"({"type":"string","minLength":2,"maxLength":2})",
                {"\"ab\""},
                {"\"a\"", "\"abc\"", "\"a\t\""}},
        Bounded{R"({"type":"string","maxLength":0})", {"\"\""}, {"\"a\""}},
        Bounded{
            R"({"type":["string","array"],"maxLength":1,"items":{"type":"string","maxLength":2}})",
            {"\"a\"", "[\"ab\"]"},
            {"\"ab\"", "\"\t\"", "[\"abc\"]", "[\"\t\"]"}},
        Bounded{
            R"({"type":"object","propertyNames":{"maxLength":1},"additionalProperties":{"$ref":"#/$defs/d"},"$defs":{"d":{"type":"string","minLength":1}}})",
            {R"({"a": "bc"})", "{}"},
            {R"({"ab": "b"})", "{\"\t\": \"b\"}", R"({"a": ""})", "{\"a\": \"\t\"}"}}));

TEST(StructuralTagTest, EverySchemaIsLookedAt) {
  for (
      const char* format :
      {R"({"json_schema":{"type":"array","uniqueItems":true}})",
       R"({"type":"qwen_xml_parameter","json_schema":{"type":"object","properties":{"a":{"not":{}}}}})",
       R"({"type":"sequence","elements":[{"json_schema":{"type":"array","uniqueItems":true}}]})"}) {
    const std::string tag = absl::StrCat(R"({"format":)", format, "}");
    const auto grammar = Compiled(OutputForm::Kind::kStructuralTag, tag);
    EXPECT_THAT(std::string(grammar.status().message()), HasSubstr("would not be obeyed")) << tag;
  }
}

TEST(StructuralTagTest, StringsOfALengthHaveNoControlCharacters) {
  const auto grammar = Compiled(
      OutputForm::Kind::kStructuralTag,
      R"({"format":{"type":"json_schema","json_schema":{"type":"string","maxLength":3}}})");
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_TRUE(Takes(**grammar, "\"ab\""));
  EXPECT_FALSE(Takes(**grammar, "\"a\t\""));
}

TEST(PrepareSchemaTest, WhatOnlyLooksLikeAStringOfALengthStaysAsItIs) {
  for (const char* text :
       {R"({"const":{"type":"string","maxLength":3}})",
        R"({"type":"null","default":{"type":"string","maxLength":3}})",
        R"({"type":"object","properties":{"maxLength":{"type":"integer"}}})",
        R"({"type":"string","maxLength":3.5})", R"({"type":"string","minLength":4,"maxLength":3})",
        R"({"type":"string","minLength":0})", R"({"type":"string","maxLength":4294967296})"}) {
    Json schema = Json::parse(text);
    const auto changed = PrepareSchema(schema);
    ASSERT_TRUE(changed.ok()) << changed.status();
    EXPECT_FALSE(*changed) << text;
    EXPECT_EQ(schema, Json::parse(text));
  }
}

TEST(PrepareSchemaTest, APatternTakesThePlaceOfTheLengths) {
  Json schema = Json::parse(
      R"({"type":["string","array"],"maxLength":1,"items":{"type":"string","minLength":2}})");
  const auto changed = PrepareSchema(schema);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_TRUE(*changed);
  Json expected = Json::parse(R"({"type":["string","array"],"items":{"type":"string"}})");
  expected["items"]["pattern"] = PatternOfLength(2, std::nullopt);
  expected["pattern"] = PatternOfLength(0, 1);
  EXPECT_EQ(schema, expected);
}

// Strings in XML are no JSON, and no pattern keeps excluded texts out.
TEST(PrepareSchemaTest, InXmlAndWithExcludedTextsLengthsStay) {
  for (const char* besides :
       {R"("type":"qwen_xml_parameter")", R"("type":"json_schema","style":"qwen_xml")",
        R"("type":"json_schema","excludes":["x"])"}) {
    Json tag = Json::parse(absl::StrCat(R"({"format":{)", besides,
                                        R"(,"json_schema":{"type":"string","maxLength":3}}})"));
    const Json before = tag;
    const auto changed = PrepareStructuralTag(tag);
    ASSERT_TRUE(changed.ok()) << changed.status();
    EXPECT_FALSE(*changed) << besides;
    EXPECT_EQ(tag, before);
  }
}

TEST(RepeatsARepetitionTest, OneInARowIsNone) {
  for (const char* regex : {"", "a+", "a+?b*?c{2}?d??", "(a+)+", "[+*]+", "\\++", "a{2}b{3}",
                            "a+|b*", "(?:a)+(?<n>b)*", "^a+$"}) {
    EXPECT_FALSE(RepeatsARepetition(regex)) << regex;
  }
  for (const char* regex : {"a++", "a*+", "a{1}{1}", "a+??", "a{2}?*", "(a)?+", "[a]*{2}", "\\+++",
                            "a+$+", "a+^*", "b|a++"}) {
    EXPECT_TRUE(RepeatsARepetition(regex)) << regex;
  }
}

}  // namespace
}  // namespace lamina::model
