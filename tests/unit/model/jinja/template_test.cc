// SPDX-License-Identifier: Apache-2.0
#include "model/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/jinja/json_value.h"
#include "model/jinja/limits.h"
#include "model/tokenizer/tool_template.h"

namespace lamina::jinja {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::string> Render(const std::string& source, const char* variables = "{}") {
  absl::StatusOr<Template> parsed = Template::Parse(source);
  if (!parsed.ok()) {
    return parsed.status();
  }
  const absl::StatusOr<Value> values = FromJson(nlohmann::ordered_json::parse(variables));
  return values.ok() ? parsed->Render(*values, std::tm{}) : values.status();
}

void ExpectError(const std::string& source, absl::StatusCode code, const std::string& message,
                 const char* variables = "{}") {
  SCOPED_TRACE(source.substr(0, 200));
  const auto text = Render(source, variables);
  ASSERT_FALSE(text.ok()) << *text;
  EXPECT_EQ(text.status().code(), code) << text.status();
  EXPECT_THAT(std::string(text.status().message()), HasSubstr(message));
}

std::string Repeat(const std::string& part, int times) {
  return absl::StrJoin(std::vector<std::string>(static_cast<size_t>(times), part), "");
}

TEST(JinjaTemplateTest, NamesTheStatementThatIsNotSupported) {
  for (const std::string name :
       {"block", "include", "import", "extends", "from", "do", "trans", "autoescape", "debug"}) {
    ExpectError(absl::StrCat("a\n{% ", name, " x %}"), absl::StatusCode::kUnimplemented,
                absl::StrCat("line 2: {% ", name, " %} is not supported"));
  }
  ExpectError("{% for x in y recursive %}{% endfor %}", absl::StatusCode::kUnimplemented,
              "recursive");
}

TEST(JinjaTemplateTest, WholeNumbersOfAFormatAreExact) {
  const char* const kNumbers =
      R"({"big": 9007199254740993, "most": 9223372036854775807, "real": -2.9, "huge": 1e300})";
  EXPECT_EQ(*Render("{{ '%d %d %d %d' % (big, most, real, true) }}", kNumbers),
            "9007199254740993 9223372036854775807 -2 1");
  ExpectError("{{ '%d' % huge }}", absl::StatusCode::kInvalidArgument, "64 bits", kNumbers);
}

TEST(JinjaTemplateTest, ATemplateForToolsRendersAsItWouldAlone) {
  const std::string plain =
      "  {% macro say(x) %}[{{ x }}]{% endmacro %}\n {{ say('plain') }} {% set y = 1 %}\n\n";
  const std::string tool_use =
      "\n{% macro say(x) %}<{{ x }}>{% endmacro %}  {{ say(tools[0]) }}\n  {#- c #} \n";
  const std::string both = model::WithToolTemplate(plain, tool_use);

  EXPECT_EQ(*Render(both, R"({"tools": null})"), *Render(plain));
  EXPECT_EQ(*Render(both), *Render(plain));
  EXPECT_EQ(*Render(both, R"({"tools": ["t"]})"), *Render(tool_use, R"({"tools": ["t"]})"));
  EXPECT_EQ(model::WithToolTemplate(plain, ""), plain);
}

TEST(JinjaTemplateTest, ALoopThatKeepsItselfIsLetGoInTheEnd) {
  const Value probe = Value::String("probe");
  const auto& held = std::get<std::shared_ptr<const Text>>(probe.data());
  const Value variables = *Value::Dict({{Value::String("probe"), probe}});
  const auto references = held.use_count();
  for (const std::string source :
       {"{% for x in [1] %}{{ loop.changed(loop, probe) }}{% endfor %}",
        "{% for x in [1] %}{{ loop.changed([loop.cycle], probe) }}{% endfor %}",
        "{% set ns = namespace(l=none) %}{% for x in [probe] %}{% set ns.l = loop %}{% endfor %}"
        "{{ ns.l.changed(ns, ns.l) }}"}) {
    const auto parsed = Template::Parse(source);
    ASSERT_TRUE(parsed.ok()) << parsed.status();

    EXPECT_EQ(*parsed->Render(variables, std::tm{}), "True");

    EXPECT_EQ(held.use_count(), references) << source;
  }
}

// To let go the last reference to a chain recurses along it.
TEST(JinjaTemplateTest, ChainsAreBoundedOrKeptToTheEnd) {
  const auto code = absl::StatusCode::kInvalidArgument;
  ExpectError(
      "{% set ns = namespace(f=1) %}{% for i in range(100000) %}"
      "{% set ns.f = [ns.f].count %}{% endfor %}",
      code, "nested deeper than 100");
  ExpectError(
      "{% set ns = namespace(f=1) %}{% for i in range(100000) %}{% for j in [ns.f] %}"
      "{% set ns.f = loop %}{% endfor %}{% endfor %}",
      code, "nested deeper than 100");
  const auto chained = Render(
      "{% set ns = namespace(f=1) %}{% for i in range(100000) %}{% for j in [1] %}"
      "{% if loop.changed(ns.f) %}{% set ns.f = loop %}{% endif %}{% endfor %}{% endfor %}"
      "{% set ns.f = 1 %}done");
  EXPECT_EQ(chained.value_or(std::string(chained.status().message())), "done");
}

// Each makes or reads much in few steps.
TEST(JinjaTemplateTest, WhatIsCopiedIsPaidFor) {
  const std::string text = "{% set b = 'a' * 100000 %}{% for i in range(10000) %}";
  std::string parameters = "a";
  for (int i = 0; i < 10'000; ++i) {
    absl::StrAppend(&parameters, ",a", i);
  }
  const std::vector<std::string> sources = {
      text + "{% set x = 'a'.startswith(b) %}{% endfor %}",
      text + "{% set x = {}[b] is defined %}{% endfor %}",
      text + "{% set x = b|truncate(5) %}{% endfor %}",
      text + "{% set x = 'a' is sameas(b) %}{% endfor %}",
      "{% set b = 'a' * 20000 %}{{ range(10000)|list|tojson(separators=(b, ':'))|length }}",
      "{% set b = 'a' * 20000 %}{{ dict(range(20000)|batch(2))|tojson(separators=(',', b))|length "
      "}}",
      "{{ range(20000)|map('center', 10000)|list|length }}",
      "{% set s = ('x',) * 1000 %}{% for i in range(10000) %}"
      "{% set x = 'a'.startswith(s) %}{% endfor %}",
      absl::StrCat("{% macro f(", parameters, ") %}{% endmacro %}{{ f() }}")};
  for (const std::string& source : sources) {
    ExpectError(source, absl::StatusCode::kInvalidArgument, "rendering takes too long");
  }
}

TEST(JinjaTemplateTest, ManyArgumentsOfTheTemplateArePaidForByEachName) {
  std::string variables = "{\"a\": 1";
  for (int i = 0; i < 20'000; ++i) {
    absl::StrAppend(&variables, ",\"v", i, "\": 1");
  }
  ExpectError("{% for i in range(10000) %}{% set x = none_such is defined %}{% endfor %}",
              absl::StatusCode::kInvalidArgument, "rendering takes too long",
              absl::StrCat(variables, "}").c_str());
}

TEST(JinjaTemplateTest, KeysThatAreEqualInPythonAreOneKeyInLargeDictsToo) {
  std::string entries;
  for (int i = 0; i < 20; ++i) {
    absl::StrAppend(&entries, i, ": ", i, ", ");
  }
  EXPECT_EQ(*Render(absl::StrCat("{% set d = {", entries,
                                 "1.0: 'x', true: 'y', 'b': 1, none: 2, 2.5: 3, 2.5: 4} %}"
                                 "{{ d|length }} {{ d[1] }} {{ d[2.5] }}")),
            "23 y 4");
}

TEST(JinjaTemplateTest, NamesTheFilterMethodOrFunctionThatIsNotSupported) {
  const auto code = absl::StatusCode::kUnimplemented;
  ExpectError("\n\n{{ 'x'|urlize }}", code, "line 3: the filter 'urlize' is not supported");
  ExpectError("{{ 'x'.zfill(3) }}", code, "the method 'zfill' of a str is not supported");
  ExpectError("{{ cycler(1) }}", code, "the function 'cycler' is not supported");
  ExpectError("{{ '%05d' % 3 }}", code, "%0");
  ExpectError("{{ '{:>3}'.format(3) }}", code, "{:>3}");
  ExpectError("{{ 0x1f }}", code, "not decimal");
  ExpectError("{{ [1][1, 2] }}", code, "subscript with commas");
  ExpectError("{{ {'a': 1}.items }}", code, "the text of a value of type function");
  ExpectError("{{ [1]|map('string') }}", code, "the text of a value of type iterator");
}

TEST(JinjaTemplateTest, NamesTheLineOfAMistake) {
  const auto code = absl::StatusCode::kInvalidArgument;
  ExpectError("a\n{{ 1 + }}", code, "line 2: unexpected }}");
  ExpectError("{{ 'abc }}", code, "line 1: a string that does not end");
  ExpectError("\n{% if x %}", code, "endif");
  ExpectError("{% endif %}", code, "unknown statement {% endif %}");
  ExpectError("{# x", code, "comment that does not end");
  ExpectError("{% raw %} x", code, "{% raw %} that does not end");
  ExpectError("{{ (1] }}", code, "unexpected ']'");
  ExpectError("{{ x", code, "{{ that does not end");
  ExpectError("{{ 1 ! 2 }}", code, "unexpected character '!'");
  ExpectError("{% set true = 1 %}", code, "cannot assign to true");
  ExpectError("{% for loop in x %}{% endfor %}", code, "loop");
  ExpectError("{% break %}", code, "outside of a loop");
  ExpectError("{{ 99999999999999999999 }}", code, "does not fit 64 bits");
  ExpectError("{{ '\\ud800' }}", code, "no character");
  ExpectError("\n\n{{ a.b.c }}", code, "line 3: 'dict' has no attribute 'b'", R"({"a":{}})");
  ExpectError("\n{{ a.b }}", code, "line 2: 'a' is undefined");
  ExpectError("{{ 'x'|nope }}", code, "there is no filter named 'nope'");
  ExpectError("{{ 'x' is nope }}", code, "there is no test named 'nope'");
  ExpectError("{{ 'x'|indent(wide=3) }}", code, "'indent' has no argument 'wide'");
  ExpectError("{{ 'x'|replace('y') }}", code, "'replace' needs its argument 'new'");
  ExpectError("{{ 9223372036854775807 + 1 }}", code, "does not fit 64 bits");
}

TEST(JinjaTemplateTest, AnExceptionOfTheTemplateIsTheMessage) {
  ExpectError("{{ raise_exception('roles must ' ~ 'alternate') }}",
              absl::StatusCode::kInvalidArgument,
              "the model's chat template refuses the conversation: roles must alternate");
}

TEST(JinjaTemplateTest, ASandboxKeepsTemplatesFromChangingOrInspectingObjects) {
  const auto code = absl::StatusCode::kInvalidArgument;
  ExpectError("{{ [1].append(2) }}", code, "'append' of a list changes it");
  ExpectError("{{ {}.update({}) }}", code, "'update' of a dict changes it");
  ExpectError("{{ ''.__class__ }}", code, "'__class__' is not for templates");
  ExpectError("{% set ns = namespace() %}{% set ns._x = 1 %}", code, "underscore");
  ExpectError("{% set d = {} %}{% set d.x = 1 %}", code, "only a namespace's attributes");
}

TEST(JinjaTemplateTest, NestingOfTheTextIsBounded) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const int deep = kNestingMax + 5;
  ExpectError(absl::StrCat("{{ ", Repeat("(", deep), "1", Repeat(")", deep), " }}"), code,
              "nested deeper");
  ExpectError(absl::StrCat("{{ ", Repeat("[", deep), Repeat("]", deep), " }}"), code,
              "nested deeper");
  ExpectError(absl::StrCat("{{ ", Repeat("-", deep), "1 }}"), code, "nested deeper");
  ExpectError(absl::StrCat("{{ ", Repeat("not ", deep), "1 }}"), code, "nested deeper");
  ExpectError(absl::StrCat("{{ 1", Repeat(" + 1", deep), " }}"), code, "nested deeper");
  ExpectError(absl::StrCat("{{ x", Repeat(".x", deep), " }}"), code, "nested deeper");
  ExpectError(absl::StrCat("{{ ", Repeat("1 if 1 else ", deep), "1 }}"), code, "nested deeper");
  ExpectError(absl::StrCat(Repeat("{% if 1 %}", deep), Repeat("{% endif %}", deep)), code,
              "nested deeper");
  ExpectError(std::string(kSourceBytesMax + 1, 'x'), code, "bytes; at most");
}

TEST(JinjaTemplateTest, NestingAtRunTimeIsBounded) {
  const auto code = absl::StatusCode::kInvalidArgument;
  ExpectError("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", code, "calls are nested deeper");
  // A list within a list within ...: through a namespace, as assignments in a loop do not last.
  ExpectError(
      "{% set ns = namespace(x=[]) %}{% for i in range(200) %}{% set ns.x = [ns.x] %}"
      "{% endfor %}",
      code, "a list or dict is nested deeper");
  const std::string deep = absl::StrCat(R"({"x":)", Repeat("[", 150), Repeat("]", 150), "}");
  ExpectError("{{ x }}", code, "nested deeper", deep.c_str());
}

TEST(JinjaTemplateTest, WorkIsBounded) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const std::string message = "rendering takes too long";
  ExpectError("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
              code, message);
  ExpectError("{{ 'x' * 1000000000000 }}", code, message);
  ExpectError("{{ [1] * 1000000000000 }}", code, message);
  ExpectError(
      "{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(100) %}"
      "{% set ns.t = ns.t + ns.t %}{% endfor %}",
      code, message);
  // Sharing makes this tree exponential.
  ExpectError(
      "{% set ns = namespace(t=[1]) %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}"
      "{% endfor %}{{ ns.t }}",
      code, message);
  ExpectError(
      "{% set ns = namespace(t=[1]) %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}"
      "{% endfor %}{{ ns.t|tojson }}",
      code, message);
  ExpectError("{{ range(100001) }}", code, "'range' is longer than 100000");
}

TEST(JinjaTemplateTest, NamespacesAndMacrosThatHoldThemselvesAreFreed) {
  // Leaks show under AddressSanitizer.
  EXPECT_EQ(*Render("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.list = [ns] %}x"),
            "x");
  EXPECT_EQ(*Render("{% macro f() %}{% set g = f %}{% macro h() %}{{ h }}{% endmacro %}y"
                    "{% endmacro %}{{ f() }}"),
            "y");
}

TEST(JinjaTemplateTest, OneTemplateRendersManyTimesAlike) {
  const auto parsed = Template::Parse(
      "{% set ns = namespace(n=0) %}{% for m in messages %}"
      "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}");
  const Value variables = *FromJson(nlohmann::ordered_json::parse(R"({"messages":[1,2,3]})"));
  EXPECT_EQ(*parsed->Render(variables, std::tm{}), "3");
  EXPECT_EQ(*parsed->Render(variables, std::tm{}), "3");
}

TEST(JinjaTemplateTest, AMillionCharactersOfChatAreWithinTheBudget) {
  const std::string variables =
      absl::StrCat(R"({"m":[{"role":"user","content":")", std::string(8 << 20, 'x'), R"("}]})");
  const auto text = Render(
      "{% for x in m %}{{ '<|im_start|>' + x.role + '\n' + x.content|trim + '<|im_end|>' }}"
      "{% endfor %}",
      variables.c_str());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_GT(text->size(), size_t{8} << 20);
}

}  // namespace
}  // namespace lamina::jinja
