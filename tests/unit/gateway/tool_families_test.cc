// SPDX-License-Identifier: Apache-2.0
//
// Answers in the words of each family, whole and in all cuts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
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
        Answer{"llama3", R"({"name": "time", "parameters": {}};)", "|@time{}"},
        Answer{"llama3", R"({"name": "time", "parameters": {}}; Done.)", "|@time{}|; Done."},
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
        Answer{"mistral",
               R"([TOOL_CALLS]time[CALL_ID]abc123456[ARGS]{"city": "x"})"
               R"([TOOL_CALLS]weather[CALL_ID]def123456[ARGS]{})",
               R"(|@time{"city":"x"}|@weather{})"},
        Answer{"mistral", R"([TOOL_CALLS][{"name": "rm", "arguments": {}}])",
               R"(|[TOOL_CALLS][{"name": "rm", "arguments": {}}])"},
        Answer{"mistral", R"([TOOL_CALLS][{"name": "time")", R"(|[TOOL_CALLS][{"name": "time")"},
        Answer{"mistral", "[TOOL_CALLS]" + std::string(300, 'a'),
               "|[TOOL_CALLS]" + std::string(300, 'a')}));

std::string Argument(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

std::string InTags(const std::string& function, const std::string& arguments) {
  return Tagged("<function=" + function + ">\n" + arguments + "</function>");
}

const char kShownInTags[] = R"(|@time{"city":"x"})";

INSTANTIATE_TEST_SUITE_P(
    Qwen3Coder, ToolFamiliesTest,
    ::testing::Values(
        Answer{"qwen3_coder", "Just text, 1 < 2 <tool", "|Just text, 1 < 2 <tool"},
        Answer{"qwen3_coder", "Text <function", "|Text <function"}, Answer{"qwen3_coder", "", ""},
        Answer{"qwen3_coder", " \n", "| \n"},
        Answer{"qwen3_coder", InTags("weather", Argument("city", "Pa\"}ris")), kShownCall},
        Answer{"qwen3_coder", InTags("time", ""), "|@time{}"},
        Answer{"qwen3_coder", InTags("time", Argument("city", "a\n\n</b>\n")),
               R"(|@time{"city":"a\n\n</b>\n"})"},
        Answer{"qwen3_coder", InTags("time", Argument("city", "a") + Argument("zone", "1")),
               R"(|@time{"city":"a","zone":"1"})"},
        Answer{"qwen3_coder", "<tool_call><function=time><parameter=city>x</parameter></function>",
               kShownInTags},
        Answer{"qwen3_coder",
               "Let me see.\n" + InTags("time", Argument("city", "x")) + "\n" +
                   InTags("time", Argument("city", "x")) + "\n",
               std::string("|Let me see.") + kShownInTags + kShownInTags},
        Answer{"qwen3_coder", InTags("time", Argument("city", "x")) + "\n" + InTags("weather", ""),
               kShownInTags,
               /*parallel=*/false},
        Answer{"qwen3_coder", InTags("time", Argument("city", "x")) + " Done.",
               std::string(kShownInTags) + "| Done."},
        // Without one or both of the outer tags, or with a last one that was cut.
        Answer{"qwen3_coder",
               "<function=time>\n" + Argument("city", "x") + "</function>\n<function=weather>\n" +
                   Argument("city", "y") + "</function>\n</tool_call>",
               std::string(kShownInTags) + R"(|@weather{"city":"y"})"},
        Answer{"qwen3_coder",
               "<tool_call>\n<function=time>\n" + Argument("city", "x") + "</function>\n</tool_",
               kShownInTags},
        // A grammar makes them so.
        Answer{"qwen3_coder", Tagged(kCall), kShownCall},
        Answer{"qwen3_coder", Tagged("{'name': 'weather'}"), "|" + Tagged("{'name': 'weather'}")},
        // Tags that are no call, an unknown function, words between the tags, a call that was cut.
        Answer{"qwen3_coder", "A <tool_call> is a tag.", "|A <tool_call> is a tag."},
        Answer{"qwen3_coder", InTags("rm", Argument("path", "/")),
               "|" + InTags("rm", Argument("path", "/"))},
        Answer{"qwen3_coder", InTags("time", "London"), "|" + InTags("time", "London")},
        Answer{"qwen3_coder", "<tool_call>\n<function=time>\n<parameter=city>\nLon",
               "|<tool_call>\n<function=time>\n<parameter=city>\nLon"},
        Answer{"qwen3_coder", "<function=" + std::string(300, 'a'),
               "|<function=" + std::string(300, 'a')}));

TEST(Qwen3CoderTest, ArgumentsAreWhatTheSchemaSays) {
  ToolRequest tools{.choice = ToolChoice::kAuto};
  tools.functions.push_back({.name = "set", .parameters = Json::parse(R"({
      "type": "object",
      "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "share": {"type": "number"},
        "on": {"type": "boolean"}, "list": {"type": "array"}, "map": {"type": "object"},
        "nothing": {"type": ["string", "null"]}, "level": {"enum": [1, 2, "high"]}, "any": {},
        "some": {"anyOf": [{"$ref": "#/$defs/count"}, {"$ref": "#/$defs/again"}]}},
      "$defs": {
        "count": {"type": "integer"}, "again": {"anyOf": [{"$ref": "#/$defs/again"}]}}})")});
  struct Case {
    const char* name;
    const char* value;
    const char* shown;
  };
  for (const Case& c : {Case{"text", "5", R"("5")"},
                        Case{"text", "null", R"("null")"},
                        Case{"text", R"({"a": 1})", R"("{\"a\": 1}")"},
                        Case{"text", "", R"("")"},
                        Case{"count", "5", "5"},
                        Case{"count", " -5 ", "-5"},
                        Case{"count", "5.0", "5.0"},
                        Case{"count", "5.5", R"("5.5")"},
                        Case{"count", "five", R"("five")"},
                        Case{"count", R"("5")", R"("\"5\"")"},
                        Case{"share", "0.5", "0.5"},
                        Case{"share", "2", "2"},
                        Case{"on", "true", "true"},
                        Case{"on", "False", "false"},
                        Case{"on", "None", R"("None")"},
                        Case{"list", "[1, {\"a\": []}]", R"([1,{"a":[]}])"},
                        Case{"list", "[1", R"("[1")"},
                        Case{"list", "{}", R"("{}")"},
                        Case{"map", R"({"a": [1]})", R"({"a":[1]})"},
                        Case{"nothing", "null", "null"},
                        Case{"nothing", "None", "null"},
                        Case{"nothing", "5", R"("5")"},
                        Case{"level", "2", "2"},
                        Case{"level", "3", R"("3")"},
                        Case{"level", "high", R"("high")"},
                        Case{"any", "5", R"("5")"},
                        Case{"some", "7", "7"},
                        Case{"some", "x", R"("x")"},
                        Case{"unknown", "5", R"("5")"}}) {
    const auto reader = Qwen3CoderFamily().make_reader(tools);
    EXPECT_EQ(ReadAll(*reader, InTags("set", Argument(c.name, c.value)), 7),
              std::string("|@set{\"") + c.name + "\":" + c.shown + "}")
        << c.name << " " << c.value;
  }
}

// Scanned anew with each byte it would take 20 billion steps.
TEST(ToolFamilyTest, ALongCallIsReadOnceOverManyCuts) {
  const ToolRequest tools = Tools();
  const std::string city(200000, 'x');
  for (const auto& [family, answer] : std::vector<std::pair<std::string, std::string>>{
           {"llama3", R"({"name": "time", "parameters": {"city": ")" + city + R"("}})"},
           {"mistral", R"([TOOL_CALLS]time[ARGS]{"city": ")" + city + R"("})"},
           {"qwen3_coder", InTags("time", Argument("city", city))}}) {
    const auto reader = ChooseToolFamily(family, "")->make_reader(tools);
    EXPECT_EQ(ReadAll(*reader, answer, 1), R"(|@time{"city":")" + city + R"("})") << family;
  }
}

const char kThinking[] = "<|channel|>analysis<|message|>Look.<|end|>";
const char kAssistant[] = "<|start|>assistant";

std::string OnChannel(const std::string& header, const std::string& content) {
  return "<|channel|>" + header + "<|message|>" + content;
}

INSTANTIATE_TEST_SUITE_P(
    Harmony, ToolFamiliesTest,
    ::testing::Values(
        Answer{"harmony", kThinking + (kAssistant + OnChannel("final", "Yes, 1 < 2 <|x|>.")),
               "|?Look.|Yes, 1 < 2 <|x|>."},
        Answer{"harmony",
               kThinking + (kAssistant + OnChannel("commentary to=functions.time <|constrain|>json",
                                                   R"({"city": "<|x"})")),
               R"(|?Look.|@time{"city":"<|x"})"},
        // The recipient may stand before the channel, and after the role in the first header too.
        Answer{"harmony", " to=functions.time" + OnChannel("commentary json", "{}<|call|>"),
               "|@time{}"},
        Answer{"harmony",
               OnChannel("commentary", "Wait.<|end|>") + kAssistant + " to=functions.weather" +
                   OnChannel("commentary", ""),
               "|Wait.|@weather{}"},
        Answer{"harmony",
               OnChannel("commentary to=functions.time", "{}<|end|>") + kAssistant +
                   OnChannel("commentary to=functions.weather", "{}"),
               "|@time{}", /*parallel=*/false},
        // An unknown function, arguments that were cut, a tool that is none of the client's.
        Answer{"harmony", OnChannel("commentary to=functions.rm", "{}"), "|{}"},
        Answer{"harmony", OnChannel("commentary to=functions.time", R"({"ci)"), R"(|{"ci)"},
        Answer{"harmony", OnChannel("analysis to=browser.search code", R"({"q":1}<|call|>)"),
               R"(|?{"q":1})"},
        Answer{"harmony",
               kThinking +
                   (kAssistant + (kThinking + (kAssistant + OnChannel("final", "a<|end|>")))) +
                   kAssistant + OnChannel("final", "b<|return|>"),
               "|?Look.\n\nLook.|a\n\nb"},
        // Without marks, as behind a header that the prompt had; marks that were cut, or are none.
        Answer{"harmony", "Just text <|en", "|Just text <|en"}, Answer{"harmony", "to", "|to"},
        Answer{"harmony", "{\"a\": 1}", "|{\"a\": 1}"}, Answer{"harmony", "", ""},
        Answer{"harmony", "<|channel|>ana", ""},
        Answer{"harmony", OnChannel("final", "a<|start|>assist"), "|a"},
        Answer{"harmony", "<|channel|>" + std::string(600, 'a'),
               "|<|channel|>" + std::string(600, 'a')}));

// What the grammar makes is read byte by byte: each as soon as it is there.
TEST(EnforcedCallsTest, ArgumentsArePassedOnAsTheyCome) {
  for (const ToolFamily* family : {&HarmonyFamily(), &HermesFamily(), &Llama3Family(),
                                   &MistralFamily(), &Qwen3CoderFamily()}) {
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
  EXPECT_EQ(ChooseToolFamily("auto", "<tool_call>\n{\"name\": <function-name>"), &HermesFamily());
  EXPECT_EQ(ChooseToolFamily("auto", "<tool_call>\n<function=f>\n<parameter=p>"),
            &Qwen3CoderFamily());
  EXPECT_EQ(ChooseToolFamily("auto", "<tool_call>f\n<arg_key>a</arg_key>"), nullptr);
  EXPECT_EQ(ChooseToolFamily("auto", "...<|python_tag|>..."), &Llama3Family());
  EXPECT_EQ(ChooseToolFamily("auto", "...[TOOL_CALLS]..."), &MistralFamily());
  EXPECT_EQ(ChooseToolFamily("auto", "...<|channel|>final<|message|>..."), &HarmonyFamily());
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
                      Thought{T::kMayBe, "<think>a</think>\n\n", "|?a"},
                      Thought{T::kOpen, "a\n</think>\nb", "|?a|b"},
                      Thought{T::kOpen, "<think>\na</think>b", "|?a|b"},
                      Thought{T::kOpen, "never closed </thi", "|?never closed </thi"},
                      Thought{T::kMayBe, "", ""}, Thought{T::kOpen, "", ""},
                      Thought{T::kMayBe, "<think>a</think>" + Tagged(kCall),
                              std::string("|?a") + kShownCall}));

}  // namespace
}  // namespace lamina::gateway
