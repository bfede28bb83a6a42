// SPDX-License-Identifier: Apache-2.0
//
// Grammars of regular expressions against PCRE2, which knows whether a text can still become a
// match; those of JSON schemas against a reader of JSON.

#define PCRE2_CODE_UNIT_WIDTH 8
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pcre2.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "tests/unit/model/grammar/letter_tokenizer.h"

namespace lamina::model {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr size_t kPadding = 5;  // Columns of the logits that the tokenizer does not know.

const LetterTokenizer& Tokens() {
  static const auto* const tokens = new LetterTokenizer(
      {"ab", "abc", "12", "2024", "-0", "true", "\": ", "\", \"", "{\"", "}]", "  ", "\n\n", "né"});
  return *tokens;
}

GrammarCompiler& Compiler() {
  static GrammarCompiler* const compiler = [] {
    auto made = MakeGrammarCompiler(Tokens(), Tokens().vocabulary_size() + kPadding);
    LAMINA_CHECK(made.ok());
    return made->release();
  }();
  return *compiler;
}

bool Bit(absl::Span<const uint32_t> mask, size_t token) {
  return mask.empty() || ((mask[token / 32] >> (token % 32)) & 1) != 0;
}

// What PCRE2 says of a text that must match as a whole.
class Pattern {
 public:
  explicit Pattern(const std::string& regex) {
    const std::string whole = absl::StrCat("\\A(?:", regex, ")\\z");
    int error = 0;
    size_t at = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(), 0, &error, &at,
                          nullptr);
    LAMINA_CHECK(code_ != nullptr);
    data_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Pattern() {
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  bool Matches(const std::string& text) { return Match(text, 0) >= 0; }
  bool CanBecome(const std::string& text) {
    const int found = Match(text, PCRE2_PARTIAL_HARD);
    return found >= 0 || found == PCRE2_ERROR_PARTIAL;
  }

 private:
  int Match(const std::string& text, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, options,
                       data_, nullptr);
  }

  pcre2_code* code_;
  pcre2_match_data* data_;
};

// Goes on with a token drawn from those that are allowed. False at the end. Without
// `bytes`, lone bytes of longer characters are left out: XGrammar lets them spell surrogates.
bool Draw(GrammarState& state, std::mt19937& random, std::string& text, bool bytes = true) {
  const absl::Span<const uint32_t> mask = state.Allowed();
  std::vector<TokenId> allowed;
  for (size_t token = 0; token < Tokens().vocabulary_size(); ++token) {
    if (Bit(mask, token) && (bytes || token <= 128 || token > 256)) {
      allowed.push_back(static_cast<TokenId>(token));
    }
  }
  LAMINA_CHECK(!allowed.empty());
  const TokenId token = allowed[random() % allowed.size()];
  EXPECT_TRUE(state.Accept(token));
  text += Tokens().TokenBytes(token, /*skip_special=*/true);
  return !state.ended();
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

class RegexTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RegexTest, AllowsWhatCanBecomeAMatchAndNothingElse) {
  const auto grammar = Compiler().Compile({OutputForm::Kind::kRegex, GetParam()});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  Pattern pattern(GetParam());
  std::mt19937 random(7);
  for (int walk = 0; walk < 20; ++walk) {
    const auto state = (*grammar)->Begin();
    std::string text;
    bool goes_on = true;
    for (int step = 0; step < 12 && goes_on; ++step) {
      const absl::Span<const uint32_t> mask = state->Allowed();
      EXPECT_EQ(Bit(mask, 0), pattern.Matches(text)) << "to end after '" << text << "'";
      for (size_t token = 1; token < Tokens().vocabulary_size(); ++token) {
        const std::string longer =
            text + Tokens().TokenBytes(static_cast<TokenId>(token), /*skip_special=*/true);
        EXPECT_EQ(Bit(mask, token), pattern.CanBecome(longer)) << "'" << longer << "'";
      }
      for (size_t i = 0; i < kPadding; ++i) {
        EXPECT_FALSE(Bit(mask, Tokens().vocabulary_size() + i));
      }
      goes_on = Draw(*state, random, text);
    }
    EXPECT_TRUE(goes_on || pattern.Matches(text)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RegexTest,
                         ::testing::Values("a", "a*", "(ab|abc)+", "[0-9]{4}-[0-9]{2}-[0-9]{2}",
                                           "-?(0|[1-9][0-9]*)(\\.[0-9]+)?", "(yes|no|true)",
                                           "[a-c]{2,5}x?", "a(b(c(d)?)?)?", "(a|b)*abb"));

std::string RandomOutput(const Grammar& grammar, uint32_t seed, bool bytes = true) {
  std::mt19937 random(seed);
  const auto state = grammar.Begin();
  std::string text;
  for (int step = 0; step < 4000; ++step) {
    if (!Draw(*state, random, text, bytes)) {
      return text;
    }
  }
  return "";  // It went on and on, which random walks may.
}

TEST(JsonSchemaTest, OutputsAreJsonOfTheSchemaInItsOrder) {
  const auto grammar = Compiler().Compile({OutputForm::Kind::kJsonSchema, R"({
      "type": "object",
      "properties": {"size": {"enum": ["ab", "12"]}, "count": {"type": "integer", "minimum": -9, "maximum": 2024},
                     "open": {"type": "boolean"}, "at": {"type": "array", "maxItems": 2,
                                                          "items": {"type": "null"}}},
      "required": ["size", "count", "open", "at"]})"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  int whole = 0;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::string text = RandomOutput(**grammar, seed, /*bytes=*/false);
    whole += text.empty() ? 0 : 1;
    const Json value = Json::parse(text.empty() ? "null" : text, nullptr, false);
    if (text.empty()) {
      continue;
    }
    ASSERT_TRUE(value.is_object()) << text;
    std::vector<std::string> keys;
    for (const auto& [key, entry] : value.items()) {
      keys.push_back(key);
    }
    EXPECT_THAT(keys, testing::ElementsAre("size", "count", "open", "at")) << text;
    EXPECT_TRUE(value["size"] == "ab" || value["size"] == "12") << text;
    EXPECT_TRUE(value["count"].is_number_integer() && value["open"].is_boolean()) << text;
    EXPECT_LE(value["at"].size(), 2u) << text;
    EXPECT_EQ(text, [&] {  // White space is where Python's json.dumps puts it, and nowhere else.
      std::string tight = text;
      tight.erase(std::remove(tight.begin(), tight.end(), ' '), tight.end());
      EXPECT_THAT(text, Not(HasSubstr("\n")));
      EXPECT_EQ(tight, value.dump());
      return text;
    }());
  }
  EXPECT_GT(whole, 40);
}

TEST(JsonSchemaTest, ObjectsOfAnyKeysAreObjects) {
  const auto grammar = Compiler().Compile(
      {OutputForm::Kind::kJsonSchema,
       R"({"type":"object","additionalProperties":{"type":["string","boolean","null"]}})"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  int whole = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::string text = RandomOutput(**grammar, seed, /*bytes=*/false);
    if (!text.empty()) {
      ++whole;
      EXPECT_TRUE(Json::parse(text, nullptr, false).is_object()) << text;
    }
  }
  EXPECT_GT(whole, 10);
}

TEST(GrammarTest, AChoiceIsOneOfIt) {
  const auto grammar =
      Compiler().Compile({OutputForm::Kind::kGrammar, R"(root ::= "né\n" | "a\"b\\" | "12")"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (uint32_t seed = 0; seed < 20; ++seed) {
    EXPECT_THAT(RandomOutput(**grammar, seed), testing::AnyOf("né\n", "a\"b\\", "12"));
  }
}

TEST(GrammarTest, WhatIsAmbiguousIsSlowToFollowAndNothingElse) {
  const auto speed_of = [](OutputForm::Kind kind, const char* text) {
    const auto grammar = Compiler().Compile({kind, text});
    return grammar.ok() ? (*grammar)->CheckSpeed() : grammar.status();
  };
  const absl::Status slow =
      speed_of(OutputForm::Kind::kGrammar, "root ::= s \"!\"\ns ::= s s | [a-z ]");
  EXPECT_THAT(std::string(slow.message()), HasSubstr("too complex"));
  EXPECT_TRUE(speed_of(OutputForm::Kind::kGrammar, "root ::= [a-z ]+ \"!\"").ok());
  EXPECT_TRUE(speed_of(OutputForm::Kind::kRegex, "(ab|cd)*").ok());
  EXPECT_TRUE(speed_of(OutputForm::Kind::kRegex, "a{3}").ok()) << "it ends soon";
  EXPECT_TRUE(speed_of(OutputForm::Kind::kJsonSchema, R"({"type":"object"})").ok());
}

// They would be put in place of each other by recursion, until there is no stack.
TEST(GrammarTest, RulesThatAreNothingButRepetitionsOfEachOtherAreRefused) {
  for (const std::string& rules :
       {std::string("root ::= root{2}"), std::string("root ::= (root){2}"),
        std::string("root ::= a\na ::= b{2}\nb ::= a{2}"),
        std::string("root ::= \"x\" a\na ::= b{200,}\nb ::= c\nc[capture] ::= a{0,3}")}) {
    const Json tag = {{"format", {{"type", "grammar"}, {"grammar", rules}}}};
    for (const OutputForm& form : {OutputForm{OutputForm::Kind::kGrammar, rules},
                                   OutputForm{OutputForm::Kind::kStructuralTag, tag.dump()}}) {
      const absl::Status status = Compiler().Compile(form).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << form.text;
      EXPECT_THAT(std::string(status.message()), HasSubstr("nothing but a repetition"))
          << form.text;
    }
  }
  const auto grammar = Compiler().Compile(
      {OutputForm::Kind::kGrammar, "root ::= a{2}\na ::= b{2}\nb ::= \"12\" | \"(\" a \")\""});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_TRUE(Takes(**grammar, "121212(1212)"));
  EXPECT_FALSE(Takes(**grammar, "121212"));
}

TEST(GrammarTest, ATokenThatDoesNotFitChangesNothing) {
  const auto grammar = Compiler().Compile({OutputForm::Kind::kRegex, "ab"});
  ASSERT_TRUE(grammar.ok());
  const auto state = (*grammar)->Begin();
  const auto letter = [](char byte) { return static_cast<TokenId>(1 + byte); };

  EXPECT_FALSE(state->Accept(letter('b')));
  EXPECT_FALSE(state->Accept(0));
  EXPECT_TRUE(state->Accept(letter('a')));
  EXPECT_TRUE(state->Accept(letter('b')));
  EXPECT_FALSE(state->ended());
  EXPECT_TRUE(state->Accept(0));
  EXPECT_TRUE(state->ended());
  EXPECT_FALSE(state->Accept(letter('a')));
}

struct WrongForm {
  OutputForm::Kind kind;
  const char* text;
};
class WrongFormTest : public ::testing::TestWithParam<WrongForm> {};

TEST_P(WrongFormTest, IsRefusedInWords) {
  const auto grammar = Compiler().Compile({GetParam().kind, GetParam().text});

  ASSERT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << GetParam().text;
  EXPECT_FALSE(grammar.status().message().empty());
  EXPECT_THAT(std::string(grammar.status().message()), Not(HasSubstr(".cc")))
      << "places in a library's sources say nothing to a user";
  EXPECT_FALSE(absl::ascii_isspace(static_cast<unsigned char>(grammar.status().message().back())));
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongFormTest,
    ::testing::Values(WrongForm{OutputForm::Kind::kJsonSchema, "{"},
                      WrongForm{OutputForm::Kind::kJsonSchema, ""},
                      WrongForm{OutputForm::Kind::kJsonSchema, R"({"type":"null"} x)"},
                      WrongForm{OutputForm::Kind::kJsonSchema, R"({"type": "colour"})"},
                      WrongForm{OutputForm::Kind::kJsonSchema, R"({"$ref": "#/$defs/none"})"},
                      WrongForm{OutputForm::Kind::kRegex, "("},
                      WrongForm{OutputForm::Kind::kRegex, "a{3,1}"},
                      WrongForm{OutputForm::Kind::kRegex, "[z-a]"},
                      WrongForm{OutputForm::Kind::kGrammar, "root ::= other"},
                      WrongForm{OutputForm::Kind::kGrammar, "start ::= \"a\""},
                      WrongForm{OutputForm::Kind::kGrammar, "root ::= \"a"}));

// It is quoted, and one of the two would be cut inside a character.
TEST(GrammarTest, AMessageThatIsTooLongIsCutBetweenCharacters) {
  for (std::string type : {"", "x"}) {
    for (int i = 0; i < 400; ++i) {
      type += "é";
    }
    const auto grammar =
        Compiler().Compile({OutputForm::Kind::kJsonSchema, R"({"type":")" + type + R"("})"});
    EXPECT_TRUE(absl::EndsWith(grammar.status().message(), "é ...")) << grammar.status();
  }
}

// Schemas of which XGrammar leaves something out are refused, and the message names what.
struct Dropped {
  const char* schema;
  const char* keyword;
};
class DroppedKeywordTest : public ::testing::TestWithParam<Dropped> {};

TEST_P(DroppedKeywordTest, IsRefusedByName) {
  for (const std::string& around : {std::string("$"), std::string(R"({"type":"array","items":$})"),
                                    std::string(R"({"type":"object","properties":{"p":$}})"),
                                    std::string(R"({"anyOf":[{"type":"null"},$]})"),
                                    std::string(R"({"$ref":"#/$defs/d","$defs":{"d":$}})")}) {
    std::string schema = around;
    schema.replace(schema.rfind('$'), 1, GetParam().schema);
    const auto grammar = Compiler().Compile({OutputForm::Kind::kJsonSchema, schema});
    ASSERT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << schema;
    EXPECT_THAT(std::string(grammar.status().message()), HasSubstr(GetParam().keyword)) << schema;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DroppedKeywordTest,
    ::testing::Values(
        Dropped{R"({"not":{"type":"string"}})", "not"},
        Dropped{R"({"type":"string","not":{"const":"a"}})", "not"},
        Dropped{R"({"type":"object","if":{},"then":{}})", "if"},
        Dropped{R"({"type":"object","else":{}})", "else"},
        Dropped{R"({"allOf":[{"type":"string"},{"maxLength":3}]})", "allOf"},
        Dropped{R"({"type":"object","allOf":[{"properties":{}}]})", "type"},
        Dropped{R"({"anyOf":[{"type":"string"}],"minLength":3})", "minLength"},
        Dropped{R"({"type":"string","anyOf":[{"minLength":3}]})", "type"},
        Dropped{R"({"oneOf":[{"type":"string"},{"type":"string","minLength":1}]})", "oneOf"},
        Dropped{R"({"enum":["a",1],"type":"string"})", "type"},
        Dropped{R"({"enum":["a"],"minLength":3})", "minLength"},
        Dropped{R"({"const":1,"minimum":3})", "minimum"},
        Dropped{R"({"type":"array","items":{},"uniqueItems":true})", "uniqueItems"},
        Dropped{R"({"type":"array","contains":{"const":1}})", "contains"},
        Dropped{R"({"type":"array","minContains":2})", "minContains"},
        Dropped{R"({"type":"array","maxContains":2})", "maxContains"},
        Dropped{R"({"type":"array","items":{},"additionalItems":false})", "additionalItems"},
        Dropped{R"({"type":"array","items":{},"unevaluatedItems":false})", "unevaluatedItems"},
        Dropped{R"({"type":"number","multipleOf":0.5})", "multipleOf"},
        Dropped{R"({"type":"integer","multipleOf":5000})", "multipleOf"},
        Dropped{R"({"type":"integer","multipleOf":3,"minimum":0})", "multipleOf"},
        Dropped{R"({"type":"integer","divisibleBy":2})", "divisibleBy"},
        Dropped{R"({"type":"integer","minimum":1,"exclusiveMinimum":true})", "exclusiveMinimum"},
        Dropped{R"({"type":"string","format":"idn-email"})", "format"},
        Dropped{R"({"type":"string","format":"date","maxLength":4})", "maxLength"},
        Dropped{R"({"type":"string","pattern":"a+","minLength":4})", "minLength"},
        Dropped{R"({"type":"string","pattern":"a+","format":"date"})", "pattern"},
        Dropped{R"({"type":"string","contentEncoding":"base64"})", "contentEncoding"},
        Dropped{R"({"type":"object","dependentRequired":{"a":["b"]}})", "dependentRequired"},
        Dropped{R"({"type":"object","dependentSchemas":{}})", "dependentSchemas"},
        Dropped{R"({"type":"object","dependencies":{}})", "dependencies"},
        Dropped{R"({"type":"object","patternProperties":{"a":{}},"propertyNames":{}})",
                "propertyNames"},
        Dropped{R"({"minimum":3})", "minimum"}, Dropped{R"({"pattern":"a"})", "pattern"},
        Dropped{R"({"required":["a"]})", "required"},
        Dropped{R"({"$dynamicRef":"#x"})", "$dynamicRef"},
        Dropped{R"({"$ref":"https://example.org/schema"})", "$ref"},
        Dropped{R"({"$ref":"#/$defs/none"})", "#/$defs/none is no place in this schema"},
        Dropped{R"({"type":"string","pattern":"a++"})", "consecutive repetition modifiers"},
        Dropped{R"({"type":"object","patternProperties":{"^a{1}{1}":{}}})",
                "consecutive repetition modifiers"},
        Dropped{R"({"type":"object","propertyNames":{"pattern":"a*?+"}})",
                "consecutive repetition modifiers"},
        Dropped{R"({"$ref":"#","minLength":3})", "minLength"}));

class ObeyedKeywordTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ObeyedKeywordTest, IsTaken) {
  const auto grammar = Compiler().Compile({OutputForm::Kind::kJsonSchema, GetParam()});
  EXPECT_TRUE(grammar.ok()) << GetParam() << ": " << grammar.status();
}

INSTANTIATE_TEST_SUITE_P(
    All, ObeyedKeywordTest,
    ::testing::Values(
        "{}", "true", R"({"type":"object"})",
        R"({"$schema":"x","$id":"y","title":"T","description":"d","default":1,"examples":[1],"deprecated":true,"x-own":1,"type":"integer"})",
        R"({"type":"string","enum":["a","b"]})", R"({"type":"integer","const":3})",
        R"({"anyOf":[{"type":"string","maxLength":3},{"type":"null"}],"default":null})",
        R"({"type":["string","null"],"maxLength":3,"minimum":1})",
        R"({"oneOf":[{"type":"string"},{"type":"integer"}]})",
        R"({"type":"string","anyOf":[{"type":"string","minLength":3}]})",
        R"({"allOf":[{"$ref":"#/$defs/d"}],"$defs":{"d":{"type":"null"},"unused":{"not":{}}}})",
        R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3,"uniqueItems":false})",
        R"({"type":"array","prefixItems":[{"type":"null"}],"items":false})",
        R"({"type":"integer","minimum":1,"maximum":9,"multipleOf":3})",
        R"({"type":"number","exclusiveMinimum":0,"maximum":1})",
        R"({"type":"string","format":"date-time"})", R"({"type":"string","pattern":"^[a-z]+$"})",
        R"({"type":"object","properties":{"a":{"type":"null"}},"required":["a"],"additionalProperties":{"type":"integer"}})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}}})",
        R"({"type":"object","patternProperties":{"^a":{"type":"integer"}}})",
        R"({"type":"string","pattern":"^(a+?b{2}?)+[*+]*\\+{2}$"})"));

// Definitions d0, d1, ..., each so many arrays within each other, of which the innermost has the
// next one.
Json ChainOfDefinitions(int definitions, int arrays) {
  Json chain = Json::object();
  for (int i = 0; i < definitions; ++i) {
    Json schema = Json::object();
    if (i + 1 < definitions) {
      schema["$ref"] = absl::StrCat("#/$defs/d", i + 1);
    } else {
      schema["type"] = "null";
    }
    for (int array = 0; array < arrays; ++array) {
      Json outer = {{"type", "array"}};
      outer["items"] = std::move(schema);
      schema = std::move(outer);
    }
    chain[absl::StrCat("d", i)] = std::move(schema);
  }
  return chain;
}

absl::Status Compiled(const Json& schema) {
  return Compiler().Compile({OutputForm::Kind::kJsonSchema, schema.dump()}).status();
}

// They would be followed by recursion, until there is no stack.
TEST(SchemaDepthTest, IsCountedThroughReferences) {
  Json schema = {{"$ref", "#/$defs/d0"}};
  schema["$defs"] = ChainOfDefinitions(101, 62);
  EXPECT_THAT(std::string(Compiled(schema).message()), HasSubstr("more than 256 deep"));

  schema = {{"type", "array"}};
  schema["$defs"] = ChainOfDefinitions(101, 62);
  for (int i = 100; i >= 0; --i) {
    const Json reference = {{"$ref", absl::StrCat("#/$defs/d", i)}};
    schema["prefixItems"].push_back(reference);
  }
  EXPECT_THAT(std::string(Compiled(schema).message()), HasSubstr("more than 256 deep"))
      << "though each is followed before the one that leads to it";
}

TEST(SchemaDepthTest, ManyDefinitionsAndThoseThatLeadBackAreTaken) {
  Json chain = {{"$ref", "#/$defs/d0"}};
  chain["$defs"] = ChainOfDefinitions(60, 1);
  EXPECT_TRUE(Compiled(chain).ok()) << Compiled(chain);

  Json many = {{"type", "array"}};
  for (int i = 0; i < 300; ++i) {
    const std::string name = absl::StrCat("d", i);
    const Json reference = {{"$ref", absl::StrCat("#/$defs/", name)}};
    many["$defs"][name]["type"] = "null";
    many["prefixItems"].push_back(reference);
  }
  EXPECT_TRUE(Compiled(many).ok()) << Compiled(many);

  const Json tree = Json::parse(
      R"({"type":"object","properties":{"children":{"type":"array","items":{"$ref":"#"}}}})");
  EXPECT_TRUE(Compiled(tree).ok()) << Compiled(tree);
  const Json node = {{"$ref", "#/$defs/node"}};
  Json nodes = node;
  nodes["$defs"]["node"] = {{"type", "array"}, {"items", node}};
  EXPECT_TRUE(Compiled(nodes).ok()) << Compiled(nodes);
}

TEST(StructuralTagTest, WhatItSaysMayCome) {
  const auto grammar = Compiler().Compile(
      {OutputForm::Kind::kStructuralTag,
       R"({"type":"structural_tag","format":{"type":"tag","begin":"ab","content":)"
       R"({"type":"json_schema","json_schema":{"type":"integer"},"max_whitespace_cnt":1},"end":"]"}})"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  const auto state = (*grammar)->Begin();
  for (const char letter : {'a', 'b', '1', '2', ']'}) {
    EXPECT_TRUE(state->Accept(static_cast<TokenId>(1 + letter))) << letter;
  }
  EXPECT_TRUE(state->Accept(0));
  EXPECT_TRUE(state->ended());
  const auto wrong = Compiler().Compile(
      {OutputForm::Kind::kStructuralTag,
       R"({"format":{"type":"json_schema","json_schema":{"type":"array","uniqueItems":true}}})"});
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("uniqueItems"));
  EXPECT_FALSE(Compiler().Compile({OutputForm::Kind::kStructuralTag, "{}"}).ok());
}

// The gateway asks for such where a model may call, and its text has a form.
TEST(StructuralTagTest, OneOfSeveralFormsMayCome) {
  const auto grammar = Compiler().Compile(
      {OutputForm::Kind::kStructuralTag,
       R"({"type":"structural_tag","format":{"type":"or","elements":[)"
       R"({"type":"tags_with_separator","separator":";","at_least_one":true,)"
       R"("stop_after_first":false,"tags":[{"type":"tag","begin":"<f>","end":"</f>","content":)"
       R"({"type":"json_schema","json_schema":{"type":"object"},"max_whitespace_cnt":1}}]},)"
       R"({"type":"json_schema","json_schema":{"type":"integer"},"max_whitespace_cnt":1}]}})"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const char* text : {"12", "<f>{}</f>", R"(<f>{"a":[1]}</f>;<f>{}</f>)"}) {
    const auto state = (*grammar)->Begin();
    for (const char* letter = text; *letter != '\0'; ++letter) {
      EXPECT_TRUE(state->Accept(static_cast<TokenId>(1 + *letter))) << text << ": " << letter;
    }
    EXPECT_TRUE(state->Accept(0)) << text;
  }
  const auto state = (*grammar)->Begin();
  EXPECT_TRUE(state->Accept(static_cast<TokenId>(1 + '1')));
  EXPECT_FALSE(state->Accept(static_cast<TokenId>(1 + '<'))) << "a call behind what has the form";
}

}  // namespace
}  // namespace lamina::model
