// SPDX-License-Identifier: Apache-2.0
//
// Responses and Messages: what requests become, and what answers look like.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gateway/apis/answer_format.h"

namespace lamina::gateway {
namespace {

using ::testing::ElementsAre;
using Kind = AnswerPart::Kind;

Json Chat(const absl::StatusOr<TranslatedRequest>& translated) {
  EXPECT_TRUE(translated.ok()) << translated.status();
  return translated.ok() ? translated->chat : Json();
}

// The names and the data of events.
std::vector<std::pair<std::string, Json>> Events(const std::string& stream) {
  std::vector<std::pair<std::string, Json>> events;
  for (const absl::string_view event : absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
    const std::vector<std::string> lines = absl::StrSplit(event, '\n');
    EXPECT_EQ(lines.size(), 2u);
    events.emplace_back(lines[0].substr(7), Json::parse(lines[1].substr(6)));
    EXPECT_EQ(events.back().first, events.back().second["type"]);
  }
  return events;
}

std::vector<std::string> Names(const std::string& stream) {
  std::vector<std::string> names;
  for (const auto& [name, data] : Events(stream)) {
    names.push_back(name);
  }
  return names;
}

FinishedChoice Everything() {
  return {.text = "Well.",
          .reasoning = "Hm.",
          .calls = {{.id = "c1", .name = "f", .arguments = R"({"x":1})"}},
          .finish = client::FinishReason::kStop,
          .called = true};
}

std::string StreamOf(AnswerFormat& format) {
  const TokenCounts counts = {.prompt = 3, .completion = 9, .reasoning = 2};
  std::string stream = format.Begin({.prompt = 3});
  for (const AnswerPart& part : std::vector<AnswerPart>{{Kind::kReasoning, "H"},
                                                        {Kind::kReasoning, "m."},
                                                        {Kind::kText, "Well."},
                                                        {Kind::kCall, "f"},
                                                        {Kind::kArguments, "{\"x\""},
                                                        {Kind::kArguments, ":1}"}}) {
    stream += format.Part(part, "c1");
  }
  stream += format.End({client::FinishReason::kStop, true, ""}, counts);
  return stream;
}

TEST(MessagesTest, ARequestBecomesAChat) {
  const Json chat = Chat(TranslateMessages(
      Json::parse(R"({"model":"m","max_tokens":9,"system":[{"type":"text","text":"S"}],
        "messages":[{"role":"user","content":"Hi"},
          {"role":"assistant","content":[{"type":"thinking","thinking":"T","signature":""},
            {"type":"text","text":"Let me."},
            {"type":"tool_use","id":"c1","name":"f","input":{"x":1}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"42"},
            {"type":"text","text":"And?"}]}],
        "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],
        "tool_choice":{"type":"any","disable_parallel_tool_use":true},
        "stop_sequences":["x"],"temperature":0.5,"metadata":{"user_id":"u"}})"),
      /*count=*/false));
  EXPECT_EQ(chat["messages"], Json::parse(R"([{"role":"system","content":"S"},
      {"role":"user","content":"Hi"},
      {"role":"assistant","content":"Let me.","tool_calls":[{"id":"c1","type":"function",
        "function":{"name":"f","arguments":"{\"x\":1}"}}],"reasoning_content":"T"},
      {"role":"tool","tool_call_id":"c1","content":"42"},{"role":"user","content":"And?"}])"));
  EXPECT_EQ(chat["tools"], Json::parse(R"([{"type":"function","function":
      {"name":"f","description":"d","parameters":{"type":"object"}}}])"));
  EXPECT_EQ(chat["tool_choice"], "required");
  EXPECT_EQ(chat["parallel_tool_calls"], false);
  EXPECT_EQ(chat["stop"], Json::parse(R"(["x"])"));
}

TEST(MessagesTest, AnAnswerThatWasBegunIsContinued) {
  const Json chat = Chat(TranslateMessages(
      Json::parse(R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"},
        {"role":"assistant","content":"I am"}],"thinking":{"type":"enabled","budget_tokens":5}})"),
      false));
  EXPECT_EQ(chat["continue_final_message"], true);
  EXPECT_EQ(chat["thinking_token_budget"], 5);
}

TEST(MessagesTest, AnAnswerThatWasBegunWithNothingIsNone) {
  for (const char* content : {R"("")", "[]", R"([{"type":"text","text":""}])"}) {
    const Json chat = Chat(TranslateMessages(
        Json::parse(
            R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"},
                {"role":"assistant","content":)" +
            std::string(content) + "}]}"),
        false));
    EXPECT_EQ(chat["messages"], Json::parse(R"([{"role":"user","content":"Hi"}])")) << content;
    EXPECT_FALSE(chat.contains("continue_final_message")) << content;
  }
}

TEST(MessagesTest, PartsOfTextAreJoinedByLines) {
  const Json chat = Chat(TranslateMessages(Json::parse(R"({"model":"m","max_tokens":9,
        "system":[{"type":"text","text":"a"},{"type":"text","text":"b"}],
        "messages":[{"role":"user","content":[{"type":"text","text":"c"},{"type":"text","text":"d"},
          {"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"e"},
            {"type":"text","text":"f"}]}]}]})"),
                                           /*count=*/false));
  EXPECT_EQ(chat["messages"][0]["content"], "a\nb");
  EXPECT_EQ(chat["messages"][1]["content"], "e\nf");
  EXPECT_EQ(chat["messages"][2]["content"], "c\nd");
}

// Templates may demand that roles alternate.
TEST(MessagesTest, MessagesOfOneRoleThatFollowEachOtherAreOne) {
  const Json chat = Chat(TranslateMessages(Json::parse(R"({"model":"m","max_tokens":9,"messages":[
        {"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]},
        {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},
        {"role":"assistant","content":[{"type":"tool_use","id":"2","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"c"}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"2","content":"d"}]},
        {"role":"user","content":"e"},
        {"role":"assistant","content":"f"},{"role":"assistant","content":"g"}]})"),
                                           /*count=*/false));
  EXPECT_EQ(chat["messages"], Json::parse(R"([{"role":"user","content":"a\nb"},
      {"role":"assistant","content":"","tool_calls":[
        {"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},
        {"id":"2","type":"function","function":{"name":"f","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"1","content":"c"},
      {"role":"tool","tool_call_id":"2","content":"d"},
      {"role":"user","content":"e"},{"role":"assistant","content":"f\ng"}])"));
  EXPECT_EQ(chat["continue_final_message"], true);
}

TEST(ResponsesTest, PartsOfTextAreJoinedByLines) {
  const Json chat =
      Chat(TranslateResponses(Json::parse(R"({"model":"m","input":[{"role":"user","content":[
        {"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]}]})")));
  EXPECT_EQ(chat["messages"][0]["content"], "a\nb");
}

TEST(MessagesTest, AnswersComeBackAsClientsGotThem) {
  const Json chat = Chat(TranslateMessages(Json::parse(R"({"model":"m","max_tokens":9,"messages":[
        {"role":"user","content":"Hi","id":"1"},
        {"role":"assistant","stop_reason":"tool_use","content":[
          {"type":"thinking","thinking":"T","signature":"","x":1},
          {"type":"text","text":"A","citations":null,"parsed_output":{"a":1}},
          {"type":"tool_use","id":"c1","name":"f","input":{},"caller":{"type":"direct"}}]},
        {"role":"user","content":[
          {"type":"tool_result","tool_use_id":"c1","content":"42","x":1}]}]})"),
                                           /*count=*/false));
  ASSERT_EQ(chat["messages"].size(), 3u);
  EXPECT_EQ(chat["messages"][1], Json::parse(R"({"role":"assistant","content":"A","tool_calls":[
      {"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}],
      "reasoning_content":"T"})"));
}

TEST(MessagesTest, WhatIsNotServedIsNamed) {
  for (
      const char* fields :
      {R"("messages":[])", R"("messages":[{"role":"system","content":"x"}])",
       R"("messages":[{"role":"user","content":[{"type":"image","source":{}}]}])",
       R"("messages":[{"role":"user","content":"x"}],"tools":[{"type":"bash_20250124","name":"b"}])",
       R"("messages":[{"role":"user","content":"x"}],"mcp_servers":[])",
       R"("messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"all"})"}) {
    const Json body = Json::parse(R"({"model":"m","max_tokens":1,)" + std::string(fields) + "}");
    EXPECT_EQ(TranslateMessages(body, false).status().code(), absl::StatusCode::kInvalidArgument)
        << fields;
  }
  const Json no_maximum =
      Json::parse(R"({"model":"m","messages":[{"role":"user","content":"x"}]})");
  EXPECT_FALSE(TranslateMessages(no_maximum, false).ok());
  EXPECT_TRUE(TranslateMessages(no_maximum, true).ok());
}

TEST(MessagesTest, AnswersHaveBlocks) {
  const auto translated = TranslateMessages(
      Json::parse(R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]})"),
      false);
  const Json whole =
      Json::parse(translated->format->Whole(Everything(), {.prompt = 3, .completion = 9}));
  EXPECT_EQ(whole["content"], Json::parse(R"([{"type":"thinking","thinking":"Hm.","signature":""},
      {"type":"text","text":"Well."},{"type":"tool_use","id":"c1","name":"f","input":{"x":1}}])"));
  EXPECT_EQ(whole["stop_reason"], "tool_use");

  const std::string stream = StreamOf(*translated->format);
  EXPECT_THAT(Names(stream),
              ElementsAre("message_start", "content_block_start", "content_block_delta",
                          "content_block_delta", "content_block_stop", "content_block_start",
                          "content_block_delta", "content_block_stop", "content_block_start",
                          "content_block_delta", "content_block_delta", "content_block_stop",
                          "message_delta", "message_stop"));
  EXPECT_EQ(Events(stream)[8].second["index"], 2);
  EXPECT_EQ(Events(stream)[8].second["content_block"]["name"], "f");
}

// Anthropic's clients add up the three counts of a prompt's tokens.
TEST(MessagesTest, TokensThatWereFoundAreNoInputTokens) {
  const auto translated = TranslateMessages(
      Json::parse(R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]})"),
      false);
  AnswerFormat& format = *translated->format;
  const TokenCounts counts = {.prompt = 40, .completion = 9, .cached = 32};
  const Json found = Json::parse(R"({"input_tokens":8,"cache_creation_input_tokens":0,
      "cache_read_input_tokens":32,"output_tokens":9})");
  EXPECT_EQ(Json::parse(format.Whole(Everything(), counts))["usage"], found);

  // How many were found is not known yet when a stream begins.
  EXPECT_EQ(Events(format.Begin({.prompt = 40})).front().second["message"]["usage"],
            Json::parse(R"({"input_tokens":40,"cache_creation_input_tokens":0,
                "cache_read_input_tokens":0,"output_tokens":0})"));
  const auto end = Events(format.End({client::FinishReason::kStop, false, ""}, counts));
  EXPECT_EQ(end.front().second["usage"], found);
}

TEST(MessagesTest, AStopSequenceThatEndsAnAnswerIsNamed) {
  const auto translated = TranslateMessages(
      Json::parse(R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]})"),
      false);
  AnswerFormat& format = *translated->format;
  const auto expect = [&format](const AnswerEnd& end, const Json& reason, const Json& sequence) {
    const Json delta = Events(format.End(end, {})).front().second["delta"];
    EXPECT_EQ(delta["stop_reason"], reason);
    EXPECT_EQ(delta["stop_sequence"], sequence);
    FinishedChoice choice = {.text = "a", .finish = end.finish, .stop = end.stop};
    if (end.called) {
      choice.calls.push_back({.id = "c1", .name = "f", .arguments = "{}"});
    }
    const Json whole = Json::parse(format.Whole(choice, {}));
    EXPECT_EQ(whole["stop_reason"], reason);
    EXPECT_EQ(whole["stop_sequence"], sequence);
  };
  const auto stop = client::FinishReason::kStop;
  expect({stop, false, "END"}, "stop_sequence", "END");
  expect({stop, true, "END"}, "stop_sequence", "END");
  expect({stop, true, ""}, "tool_use", nullptr);
  expect({stop, false, ""}, "end_turn", nullptr);
  expect({client::FinishReason::kLength, false, ""}, "max_tokens", nullptr);
}

TEST(MessagesTest, ArgumentsThatNoRequestMayHaveAreLeftOut) {
  const auto translated = TranslateMessages(
      Json::parse(R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]})"),
      false);
  FinishedChoice choice = Everything();
  for (const std::string& arguments :
       {R"({"x":)" + std::string(64, '[') + std::string(64, ']') + "}", std::string(R"({"x":)")}) {
    choice.calls[0].arguments = arguments;
    const Json whole = Json::parse(translated->format->Whole(choice, {}));
    EXPECT_EQ(whole["content"][2]["input"], Json::object()) << arguments;
  }
}

TEST(ResponsesTest, ARequestBecomesAChat) {
  const Json chat =
      Chat(TranslateResponses(Json::parse(R"({"model":"m","instructions":"S","max_output_tokens":9,
        "input":[{"role":"user","content":[{"type":"input_text","text":"Hi"}]},
          {"type":"reasoning","id":"r","summary":[],"content":[{"type":"reasoning_text","text":"T"}]},
          {"type":"reasoning","id":"q","summary":[],"content":null},
          {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
          {"type":"function_call","call_id":"c2","name":"f","arguments":"{}"},
          {"type":"function_call_output","call_id":"c1","output":"42"}],
        "tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":true}],
        "tool_choice":{"type":"function","name":"f"},"truncation":"auto",
        "text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}},
        "reasoning":{"effort":"low","summary":null},"store":false})")));
  EXPECT_EQ(chat["messages"], Json::parse(R"([{"role":"system","content":"S"},
      {"role":"user","content":"Hi"},
      {"role":"assistant","content":"","reasoning_content":"T","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},
        {"id":"c2","type":"function","function":{"name":"f","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"42"}])"));
  EXPECT_EQ(chat["tools"][0]["function"]["name"], "f");
  EXPECT_EQ(chat["tool_choice"]["function"]["name"], "f");
  EXPECT_EQ(chat["truncate_prompt_tokens"], -1);
  EXPECT_EQ(chat["response_format"]["json_schema"]["schema"], Json::parse(R"({"type":"object"})"));
  EXPECT_EQ(chat["reasoning_effort"], "low");
  EXPECT_EQ(chat["max_tokens"], 9);
}

TEST(ResponsesTest, WhatIsNotServedIsNamed) {
  for (const char* fields :
       {R"("input":5)", R"("input":"x","previous_response_id":"r")",
        R"("input":"x","background":true)", R"("input":"x","tools":[{"type":"web_search"}])",
        R"("input":"x","colour":1)", R"("input":[{"type":"item_reference","id":"i"}])",
        R"("input":[{"role":"user","content":[{"type":"input_image"}]}])"}) {
    const Json body = Json::parse(R"({"model":"m",)" + std::string(fields) + "}");
    EXPECT_EQ(TranslateResponses(body).status().code(), absl::StatusCode::kInvalidArgument)
        << fields;
  }
}

TEST(ResponsesTest, AnItemWithoutATypeIsAMessage) {
  const Json chat = Chat(TranslateResponses(
      Json::parse(R"({"model":"m","input":[{"type":null,"role":"user","content":"x"}]})")));
  EXPECT_EQ(chat["messages"], Json::parse(R"([{"role":"user","content":"x"}])"));
}

TEST(FieldNamesTest, TheNearestNameIsTaken) {
  FieldNames names;
  names.Add("a", "x");
  names.Add("a[0].b", "y");
  const auto field = [&names](const char* ours) {
    return FieldOf(names.InClientsWords(BadField(ours, "invalid_value", "m")));
  };
  EXPECT_EQ(field("a"), "x");
  EXPECT_EQ(field("a[1].b"), "x[1].b");
  EXPECT_EQ(field("a[0].b.c"), "y.c");
  EXPECT_EQ(field("a[0].bc"), "x[0].bc");
  EXPECT_EQ(field("ab"), "ab");
  EXPECT_EQ(FieldOf(names.InClientsWords(absl::InternalError("a"))), "");
  EXPECT_TRUE(names.InClientsWords(absl::OkStatus()).ok());
}

TEST(ResponsesTest, AnswersHaveItems) {
  const auto translated = TranslateResponses(Json::parse(R"({"model":"m","input":"x"})"));
  const Json whole = Json::parse(translated->format->Whole(
      Everything(), {.prompt = 3, .completion = 9, .cached = 1, .reasoning = 2}));
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["usage"]["input_tokens_details"]["cached_tokens"], 1);
  ASSERT_EQ(whole["output"].size(), 3u);
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "Hm.");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "Well.");
  EXPECT_EQ(whole["output"][2]["arguments"], R"({"x":1})");
  EXPECT_EQ(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 2);

  const auto events = Events(StreamOf(*translated->format));
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].second["sequence_number"], i);
  }
  EXPECT_EQ(events.front().first, "response.created");
  EXPECT_EQ(events.back().first, "response.completed");
  const Json& output = events.back().second["response"]["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0]["content"][0]["text"], "Hm.");
  EXPECT_EQ(output[2]["arguments"], R"({"x":1})");
  FinishedChoice cut = {.text = "a", .finish = client::FinishReason::kLength};
  EXPECT_EQ(Json::parse(translated->format->Whole(cut, {}))["incomplete_details"]["reason"],
            "max_output_tokens");
}

TEST(ResponsesTest, TheLastItemOfAnAnswerThatWasCutIsIncomplete) {
  const auto translated = TranslateResponses(Json::parse(R"({"model":"m","input":"x"})"));
  FinishedChoice cut = Everything();
  cut.calls.push_back({.id = "c2", .name = "f", .arguments = "{"});
  cut.finish = client::FinishReason::kLength;
  const Json whole = Json::parse(translated->format->Whole(cut, {}));
  EXPECT_EQ(whole["status"], "incomplete");
  ASSERT_EQ(whole["output"].size(), 4u);
  EXPECT_EQ(whole["output"][1]["status"], "completed");
  EXPECT_EQ(whole["output"][2]["status"], "completed");
  EXPECT_EQ(whole["output"][3]["status"], "incomplete");
  cut.calls.clear();
  EXPECT_EQ(Json::parse(translated->format->Whole(cut, {}))["output"][1]["status"], "incomplete");
}

TEST(ResponsesTest, TheLastItemOfAStreamThatWasCutIsIncomplete) {
  const auto translated = TranslateResponses(Json::parse(R"({"model":"m","input":"x"})"));
  AnswerFormat& format = *translated->format;
  std::string stream = format.Begin({});
  stream += format.Part({Kind::kText, "Well."}, "");
  stream += format.Part({Kind::kCall, "f"}, "c1");
  stream += format.Part({Kind::kArguments, "{"}, "c1");
  stream += format.End({.finish = client::FinishReason::kLength}, {});

  const auto events = Events(stream);
  const Json& output = events.back().second["response"]["output"];
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output[0]["status"], "completed");
  EXPECT_EQ(output[1]["status"], "incomplete");
  EXPECT_EQ(events[events.size() - 2].second["item"]["status"], "incomplete");
}

}  // namespace
}  // namespace lamina::gateway
