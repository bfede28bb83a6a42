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
  return CompletionFormat({.id = "cmpl-1", .model = "m\"", .created = 5}, logprobs, alternatives);
}
CompletionFormat Chat(bool logprobs = false) {
  return CompletionFormat({.chat = true, .id = "chatcmpl-1", .model = "m", .created = 5}, logprobs,
                          2);
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
  const Json end = ObjectOf(format.FinishEvent(0, client::FinishReason::kStop, Usage::kAbsent, {}));
  EXPECT_EQ(end["choices"],
            Json::parse(R"([{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}])"));
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
