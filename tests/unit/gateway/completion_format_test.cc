// SPDX-License-Identifier: Apache-2.0
//
// The shapes are those of OpenAI's API reference: objects "text_completion", "chat.completion" and
// "chat.completion.chunk".
#include "gateway/completion_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "nlohmann/json.hpp"

namespace lamina::gateway {
namespace {

using Json = nlohmann::ordered_json;
using Usage = CompletionFormat::Usage;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

CompletionFormat Plain(bool logprobs = false, uint32_t alternatives = 0) {
  return CompletionFormat({.id = "cmpl-1", .model = "m\"", .created = 5},
                          {.logprobs = logprobs, .alternatives = alternatives});
}
CompletionFormat Chat(bool logprobs = false) {
  return CompletionFormat({.chat = true, .id = "chatcmpl-1", .model = "m", .created = 5},
                          {.logprobs = logprobs, .alternatives = 2});
}

// The object of an event, after checking how it is framed.
Json ObjectOf(const std::string& event) {
  EXPECT_THAT(event, StartsWith("data: {"));
  EXPECT_THAT(event, EndsWith("}\n\n"));
  EXPECT_EQ(event.find('\n'), event.size() - 2) << "an event is one line";
  return Json::parse(event.substr(6));
}

TEST(CompletionFormatTest, PlainEventsHaveTheirFields) {
  const Json chunk = ObjectOf(Plain().TextEvent(1, "a\n\"\xC3\xA9", {}, 0, Usage::kAbsent, {}));

  EXPECT_EQ(chunk["id"], "cmpl-1");
  EXPECT_EQ(chunk["object"], "text_completion");
  EXPECT_EQ(chunk["created"], 5);
  EXPECT_EQ(chunk["model"], "m\"");
  EXPECT_FALSE(chunk.contains("usage"));
  EXPECT_EQ(
      chunk["choices"],
      Json::parse(R"([{"index":1,"text":"a\n\"\u00e9","logprobs":null,"finish_reason":null}])"));
}

TEST(CompletionFormatTest, ChatEventsAreRoleThenContentThenReason) {
  const CompletionFormat format = Chat();
  EXPECT_EQ(ObjectOf(format.RoleEvent(0, Usage::kAbsent, {}))["choices"][0]["delta"],
            Json::parse(R"({"role":"assistant","content":"","refusal":null})"));
  const Json text = ObjectOf(format.TextEvent(0, "x", {}, 0, Usage::kAbsent, {}));
  EXPECT_EQ(text["object"], "chat.completion.chunk");
  EXPECT_EQ(text["choices"][0]["delta"], Json::parse(R"({"content":"x"})"));
  const Json end = ObjectOf(
      format.FinishEvent(0, client::FinishReason::kStop, /*called=*/false, Usage::kAbsent, {}));
  EXPECT_EQ(end["choices"],
            Json::parse(R"([{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}])"));
}

TEST(CompletionFormatTest, CallsAndThoughtsHaveTheirEvents) {
  const CompletionFormat format = Chat();
  const auto delta = [&format](AnswerPart::Kind kind, const std::string& text) {
    return ObjectOf(format.PartEvent(0, {kind, text}, 1, "call_1", {}, Usage::kAbsent,
                                     {}))["choices"][0]["delta"];
  };
  EXPECT_EQ(delta(AnswerPart::Kind::kText, "x"), Json::parse(R"({"content":"x"})"));
  EXPECT_EQ(delta(AnswerPart::Kind::kReasoning, "x"),
            Json::parse(R"({"reasoning":"x","reasoning_content":"x"})"));
  EXPECT_EQ(delta(AnswerPart::Kind::kCall, "f"),
            Json::parse(R"({"tool_calls":[{"index":1,"id":"call_1","type":"function",)"
                        R"("function":{"name":"f","arguments":""}}]})"));
  EXPECT_EQ(delta(AnswerPart::Kind::kArguments, "{\"a"),
            Json::parse(R"({"tool_calls":[{"index":1,"function":{"arguments":"{\"a"}}]})"));
  const Json end = ObjectOf(
      format.FinishEvent(0, client::FinishReason::kStop, /*called=*/true, Usage::kAbsent, {}));
  EXPECT_EQ(end["choices"][0]["finish_reason"], "tool_calls");
}

TEST(CompletionFormatTest, AWholeMessageOfCallsHasNoText) {
  const FinishedChoice choice = {.reasoning = "t",
                                 .calls = {{.id = "call_1", .name = "f", .arguments = "{}"}},
                                 .finish = client::FinishReason::kStop,
                                 .called = true};
  const Json body =
      Json::parse(Chat().Whole({choice}, {.prompt = 1, .completion = 2, .reasoning = 1}));
  EXPECT_EQ(body["choices"][0]["message"],
            Json::parse(R"({"role":"assistant","content":null,"refusal":null,"annotations":[],)"
                        R"("tool_calls":[{"id":"call_1","type":"function","function":)"
                        R"({"name":"f","arguments":"{}"}}],"reasoning":"t",)"
                        R"("reasoning_content":"t"})"));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
}

TEST(CompletionFormatTest, IdsAreShownWhereTheyAreAskedFor) {
  const Json event = ObjectOf(Chat().IdsEvent(0, {1, 2}, {3}, Usage::kAbsent, {}));
  EXPECT_EQ(event["choices"][0]["token_ids"], Json::parse("[1,2]"));
  EXPECT_EQ(event["prompt_token_ids"], Json::parse("[3]"));
  const Json plain = ObjectOf(Plain().IdsEvent(0, {1}, {3}, Usage::kAbsent, {}));
  EXPECT_EQ(plain["choices"][0]["prompt_token_ids"], Json::parse("[3]"));
}

TEST(CompletionFormatTest, UsageIsAbsentNullOrCounted) {
  const TokenCounts counts = {.prompt = 3, .completion = 4};
  const Json null = ObjectOf(Chat().TextEvent(0, "x", {}, 0, Usage::kNull, counts));
  EXPECT_TRUE(null["usage"].is_null());
  const Json expected = Json::parse(
      R"({"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}})");
  EXPECT_EQ(ObjectOf(Chat().TextEvent(0, "x", {}, 0, Usage::kCounts, counts))["usage"], expected);
  const Json last = ObjectOf(Chat().UsageEvent(counts));
  EXPECT_EQ(last["usage"], expected);
  EXPECT_EQ(last["choices"], Json::array());
}

const std::vector<ShownToken>& TwoTokens() {
  static const auto* tokens =
      new std::vector<ShownToken>{{.token = 7,
                                   .text = " \xC3\xA9",
                                   .logprob = -0.5f,
                                   .top = {{7, -0.5f, " \xC3\xA9"}, {8, -2.0f, "b"}}},
                                  {.token = 9,
                                   .text = "\xF0\x9F",
                                   .logprob = -std::numeric_limits<float>::infinity(),
                                   .top = {{8, -1.0f, "b"}}}};
  return *tokens;
}

TEST(CompletionFormatTest, PlainLogprobsCountCharactersAndEscapePartsOfOne) {
  const Json chunk =
      ObjectOf(Plain(true, 2).TextEvent(0, "x", TwoTokens(), 10, Usage::kAbsent, {}));

  EXPECT_EQ(chunk["choices"][0]["logprobs"],
            Json::parse(
                R"({"text_offset":[10,12],"token_logprobs":[-0.5,-9999.0],)"
                R"("tokens":[" é","bytes:\\xf0\\x9f"],)"
                R"("top_logprobs":[{" é":-0.5,"b":-2.0},{"b":-1.0,"bytes:\\xf0\\x9f":-9999.0}]})"));
}

TEST(CompletionFormatTest, ChatLogprobsHaveTheBytes) {
  const Json chunk = ObjectOf(Chat(true).TextEvent(0, "x", TwoTokens(), 0, Usage::kAbsent, {}));
  const Json& content = chunk["choices"][0]["logprobs"]["content"];

  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["bytes"], Json::parse("[32,195,169]"));
  EXPECT_EQ(content[0]["top_logprobs"][1]["token"], "b");
  EXPECT_EQ(content[1]["token"], "\\xf0\\x9f");
  EXPECT_EQ(content[1]["bytes"], Json::parse("[240,159]"));
}

TEST(CompletionFormatTest, WholeAnswersHaveEveryChoiceAndTheUsage) {
  const std::vector<FinishedChoice> choices = {
      {.index = 0, .text = "a", .finish = client::FinishReason::kStop},
      {.index = 1, .text = "b", .finish = client::FinishReason::kLength}};
  const Json plain = Json::parse(Plain().Whole(choices, {.prompt = 2, .completion = 5}));
  EXPECT_EQ(plain["choices"][1],
            Json::parse(R"({"index":1,"text":"b","logprobs":null,"finish_reason":"length"})"));
  EXPECT_EQ(plain["usage"]["total_tokens"], 7);

  const Json chat = Json::parse(Chat().Whole(choices, {}));
  EXPECT_EQ(chat["object"], "chat.completion");
  EXPECT_EQ(chat["choices"][0]["message"],
            Json::parse(R"({"role":"assistant","content":"a","refusal":null,"annotations":[]})"));
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "stop");
}

TEST(CompletionFormatTest, PromptLogprobsBeginWithNull) {
  const std::vector<FinishedChoice> choices = {
      {.prompt_tokens = {{.token = 1, .text = "A"},
                         {.token = 2,
                          .text = "B",
                          .logprob = -1.0f,
                          .rank = 2,
                          .top = {{.token = 7, .logprob = -0.5f, .text = "\xff"},
                                  {.token = 2, .logprob = -1.0f, .text = "B"}}},
                         {.token = 3, .text = "C", .logprob = -2.0f, .rank = 9}}}};
  const Json expected = Json::parse(R"([null,
      {"2":{"logprob":-1.0,"rank":2,"decoded_token":"B"},
       "7":{"logprob":-0.5,"rank":1,"decoded_token":"bytes:\\xff"}},
      {"3":{"logprob":-2.0,"rank":9,"decoded_token":"C"}}])");
  EXPECT_EQ(Json::parse(Plain().Whole(choices, {}))["choices"][0]["prompt_logprobs"], expected);
  const Json chat = Json::parse(Chat().Whole(choices, {}));
  EXPECT_EQ(chat["prompt_logprobs"], expected);
  EXPECT_FALSE(chat["choices"][0].contains("prompt_logprobs"));
}

TEST(CompletionFormatTest, ErrorsAndTheEndAreEvents) {
  EXPECT_EQ(ErrorEvent("{}"), "data: {}\n\n");
  EXPECT_STREQ(kDoneEvent, "data: [DONE]\n\n");
  EXPECT_THAT(std::string(kKeepAliveComment), StartsWith(":"));
}

TEST(CompletionFormatTest, CharactersAreCountedOverCutsOfTheText) {
  EXPECT_EQ(CountCharacters("a\xC3\xA9\xF0\x9F\x98\x80"), 3u);
  EXPECT_EQ(CountCharacters("\xF0\x9F") + CountCharacters("\x98\x80"), 1u);
}

}  // namespace
}  // namespace lamina::gateway
