// SPDX-License-Identifier: Apache-2.0
//
// Answers in the words of each family, whole and in all cuts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gateway/answer_reader.h"
#include "gateway/tools/tool_family.h"

namespace lamina::gateway {
namespace {

using Kind = AnswerPart::Kind;

ToolRequest Tools(bool parallel = true) {
  ToolRequest tools{.choice = ToolChoice::kAuto, .parallel = parallel};
  for (const char* name : {"weather", "time"}) {
    tools.functions.push_back(
        {.name = name,
         .parameters = Json::parse(
             R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]})")});
  }
  return tools;
}

// "text", "?thought", "weather({...})", in order; neighbours of a kind together.
std::string Shown(const std::vector<AnswerPart>& parts) {
  std::string out;
  Kind last = Kind::kCall;
  for (const AnswerPart& part : parts) {
    if (part.kind == Kind::kArguments) {
      EXPECT_TRUE(last == Kind::kCall || last == Kind::kArguments);
      out += part.text;
    } else {
      const bool same = part.kind == last && part.kind != Kind::kCall;
      out += same ? "" : (part.kind == Kind::kCall ? "|@" : part.kind == Kind::kText ? "|" : "|?");
      out += part.text;
    }
    last = part.kind;
  }
  return out;
}

std::string ReadAll(PartReader& reader, const std::string& answer, size_t piece) {
  std::vector<AnswerPart> parts;
  for (size_t i = 0; i < answer.size(); i += piece) {
    reader.Push(answer.substr(i, piece), parts);
  }
  reader.Finish(parts);
  return Shown(parts);
}

struct Answer {
  const char* family;
  std::string text;
  std::string shown;
  bool parallel = true;
};

class ToolFamiliesTest : public ::testing::TestWithParam<Answer> {};

TEST_P(ToolFamiliesTest, CallsAndTextAreToldApartOverAnyCuts) {
  const ToolFamily* family = ChooseToolFamily(GetParam().family, "");
  ASSERT_NE(family, nullptr);
  const ToolRequest tools = Tools(GetParam().parallel);
  for (size_t piece = 1; piece <= GetParam().text.size() + 1; ++piece) {
    const auto reader = family->make_reader(tools);
    EXPECT_EQ(ReadAll(*reader, GetParam().text, piece), GetParam().shown) << piece;
  }
}

const char kCall[] = R"({"name": "weather", "arguments": {"city": "Pa\"}ris"}})";
const char kShownCall[] = R"(|@weather{"city":"Pa\"}ris"})";

std::string Tagged(const std::string& body) { return "<tool_call>\n" + body + "\n</tool_call>"; }

INSTANTIATE_TEST_SUITE_P(
    Hermes, ToolFamiliesTest,
    ::testing::Values(
        Answer{"hermes", "Just text, 1 < 2 <tool", "|Just text, 1 < 2 <tool"},
        Answer{"hermes", "", ""}, Answer{"hermes", " \n", "| \n"},
        Answer{"hermes", Tagged(kCall), kShownCall},
        Answer{"hermes", "Let me see.\n" + Tagged(kCall) + "\n" + Tagged(kCall) + "\n",
               std::string("|Let me see.") + kShownCall + kShownCall},
        Answer{"hermes", Tagged(kCall) + "\n" + Tagged(kCall), kShownCall, /*parallel=*/false},
        Answer{"hermes", Tagged(kCall) + " Done.", std::string(kShownCall) + "| Done."},
        // Not closed: a model that ended its turn with the call.
        Answer{"hermes", "<tool_call>" + std::string(kCall), kShownCall},
        // No JSON, an unknown function, arguments that are no object, a call that was cut.
        Answer{"hermes", Tagged("{'name': 'weather'}"), "|" + Tagged("{'name': 'weather'}")},
        Answer{"hermes", Tagged(R"({"name": "rm", "arguments": {}})"),
               "|" + Tagged(R"({"name": "rm", "arguments": {}})")},
        Answer{"hermes", Tagged(R"({"name": "time", "arguments": 3})"),
               "|" + Tagged(R"({"name": "time", "arguments": 3})")},
        Answer{"hermes", R"(<tool_call>{"name": "time", "argu)",
               R"(|<tool_call>{"name": "time", "argu)"},
        Answer{"hermes", Tagged(R"({"name": "time", "arguments": "{\"city\": \"x\"}"})"),
               R"(|@time{"city":"x"})"},
        Answer{"hermes", Tagged(std::string(100, '[')), "|" + Tagged(std::string(100, '['))}));

INSTANTIATE_TEST_SUITE_P(
    Llama3, ToolFamiliesTest,
    ::testing::Values(
        Answer{"llama3", "Just {text}", "|Just {text}"},
        Answer{"llama3", R"({"name": "time", "parameters": {"city": "x"}})",
               R"(|@time{"city":"x"})"},
        Answer{
            "llama3",
            R"(<|python_tag|>{"name": "time", "parameters": {}}; {"name": "weather", "parameters": {}})",
            "|@time{}|@weather{}"},
        Answer{"llama3",
               R"({"name": "time", "parameters": {}}; {"name": "weather", "parameters": {}})",
               "|@time{}", /*parallel=*/false},
        Answer{"llama3", R"({"answer": 42})", R"(|{"answer": 42})"},
        Answer{"llama3", R"({"name": "time", "param)", R"(|{"name": "time", "param)"},
        Answer{"llama3", "", ""}, Answer{"llama3", "<|python", "|<|python"}));

INSTANTIATE_TEST_SUITE_P(
    Mistral, ToolFamiliesTest,
    ::testing::Values(
        Answer{"mistral", "[1] Just text [TOOL", "|[1] Just text [TOOL"},
        Answer{"mistral", R"([TOOL_CALLS][{"name": "time", "arguments": {"city": "]"}}])",
               R"(|@time{"city":"]"})"},
        Answer{
            "mistral",
            R"(Well.[TOOL_CALLS] [{"name": "time", "arguments": {}}, {"name": "weather", "arguments": {}}])",
            "|Well.|@time{}|@weather{}"},
        Answer{"mistral", R"([TOOL_CALLS]time[ARGS]{"city": "x"}[TOOL_CALLS]weather{})",
               R"(|@time{"city":"x"}|@weather{})"},
        Answer{"mistral", R"([TOOL_CALLS][{"name": "rm", "arguments": {}}])",
               R"(|[TOOL_CALLS][{"name": "rm", "arguments": {}}])"},
        Answer{"mistral", R"([TOOL_CALLS][{"name": "time")", R"(|[TOOL_CALLS][{"name": "time")"},
        Answer{"mistral", "[TOOL_CALLS]" + std::string(300, 'a'),
               "|[TOOL_CALLS]" + std::string(300, 'a')}));

// What the grammar makes is read byte by byte: each as soon as it is there.
TEST(EnforcedCallsTest, ArgumentsArePassedOnAsTheyCome) {
  for (const ToolFamily* family : {&HermesFamily(), &Llama3Family(), &MistralFamily()}) {
    const CallSyntax& s = family->syntax;
    const auto call = [&s](const std::string& name, const std::string& arguments) {
      return s.before + name + s.between + arguments + s.end;
    };
    const std::string first = R"({"city": "a}\"{"})";
    const std::string answer =
        s.lead + call("weather", first) + s.separator + call("time", "{}") + s.close;
    for (size_t piece = 1; piece <= answer.size(); ++piece) {
      const auto reader = MakeEnforcedReader(s);
      EXPECT_EQ(ReadAll(*reader, answer, piece), "|@weather" + first + "|@time{}") << piece;
    }
    const auto reader = MakeEnforcedReader(s);
    std::vector<AnswerPart> parts;
    reader->Push(s.lead + s.before + "weather" + s.between + "{\"ci", parts);
    EXPECT_EQ(Shown(parts), "|@weather{\"ci");
  }
}

TEST(EnforcedCallsTest, TheFormatHasWhatTheChoiceDemands) {
  ToolRequest tools = Tools();
  tools.choice = ToolChoice::kRequired;
  Json format = CallsFormat(tools, HermesFamily().syntax);
  EXPECT_EQ(format["tags"].size(), 2u);
  EXPECT_EQ(format["at_least_one"], true);
  EXPECT_EQ(format["stop_after_first"], false);
  tools.choice = ToolChoice::kNamed;
  tools.named = "time";
  format = CallsFormat(tools, HermesFamily().syntax);
  EXPECT_EQ(format["tags"].size(), 1u);
  EXPECT_TRUE(absl::StrContains(format["tags"][0]["begin"].get<std::string>(), "\"time\""));
  EXPECT_EQ(format["stop_after_first"], true);
  EXPECT_EQ(CallsFormat(tools, MistralFamily().syntax)["elements"].size(), 3u);
}

TEST(ToolFamilyTest, IsChosenByTheTemplateOrByName) {
  EXPECT_EQ(ChooseToolFamily("auto", "...<tool_call>..."), &HermesFamily());
  EXPECT_EQ(ChooseToolFamily("auto", "...<|python_tag|>..."), &Llama3Family());
  EXPECT_EQ(ChooseToolFamily("auto", "...[TOOL_CALLS]..."), &MistralFamily());
  EXPECT_EQ(ChooseToolFamily("auto", "{{ messages }}"), nullptr);
  EXPECT_EQ(ChooseToolFamily("none", "<tool_call>"), nullptr);
  EXPECT_EQ(ChooseToolFamily("llama3", "<tool_call>"), &Llama3Family());
}

struct Thought {
  AnswerReader::Thought begin;
  std::string text;
  std::string shown;
};
class AnswerReaderTest : public ::testing::TestWithParam<Thought> {};

TEST_P(AnswerReaderTest, ThoughtsAreToldApartOverAnyCuts) {
  const ToolRequest tools = Tools();
  for (size_t piece = 1; piece <= GetParam().text.size() + 1; ++piece) {
    AnswerReader reader(GetParam().begin, HermesFamily().make_reader(tools));
    EXPECT_EQ(ReadAll(reader, GetParam().text, piece), GetParam().shown) << piece;
  }
}

using T = AnswerReader::Thought;
INSTANTIATE_TEST_SUITE_P(
    All, AnswerReaderTest,
    ::testing::Values(Thought{T::kNone, "<think>a</think>b", "|<think>a</think>b"},
                      Thought{T::kMayBe, "<think>\na <b\n</think>\n\nc", "|?a <b|c"},
                      Thought{T::kMayBe, "plain <think>", "|plain <think>"},
                      Thought{T::kMayBe, "<thin", "|<thin"},
                      Thought{T::kMayBe, "<think>\n\n</think>\n\nc", "|c"},
                      Thought{T::kOpen, "a\n</think>\nb", "|?a|b"},
                      Thought{T::kOpen, "<think>\na</think>b", "|?a|b"},
                      Thought{T::kOpen, "never closed </thi", "|?never closed </thi"},
                      Thought{T::kMayBe, "", ""}, Thought{T::kOpen, "", ""},
                      Thought{T::kMayBe, "<think>a</think>" + Tagged(kCall),
                              std::string("|?a") + kShownCall}));

}  // namespace
}  // namespace lamina::gateway
