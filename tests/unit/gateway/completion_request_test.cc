// SPDX-License-Identifier: Apache-2.0
#include "gateway/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "gateway/api_error.h"

namespace lamina::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

absl::StatusOr<CompletionRequest> Plain(const std::string& fields) {
  const auto body = ParseBody(absl::StrCat(R"({"model":"m",)", fields, "}"));
  return body.ok() ? ParseCompletion(*body, {.choices_max = 8}) : body.status();
}
absl::StatusOr<CompletionRequest> Chat(const std::string& fields) {
  const auto body = ParseBody(absl::StrCat(R"({"model":"m",)", fields, "}"));
  return body.ok() ? ParseChatCompletion(*body, {.choices_max = 8}) : body.status();
}
constexpr char kMessages[] = R"("messages":[{"role":"user","content":"hi"}])";

TEST(CompletionRequestTest, DefaultsAreOpenAis) {
  const auto request = Plain(R"("prompt":"x")");
  ASSERT_TRUE(request.ok()) << request.status();

  EXPECT_EQ(std::get<std::string>(request->prompts.at(0)), "x");
  EXPECT_EQ(request->options.max_tokens, 16u);
  EXPECT_FALSE(request->options.temperature.has_value()) << "the model's makers may advise one";
  EXPECT_EQ(request->options.n, 1u);
  EXPECT_FALSE(request->options.seed.has_value());
  EXPECT_FALSE(request->stream || request->echo || request->logprobs);

  const auto chat = Chat(kMessages);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_GT(*chat->options.max_tokens, 1u << 30) << "a chat goes on until the context is full";
}

TEST(CompletionRequestTest, BeamSearchesTakeTheWordsOfVllmAndTransformers) {
  const auto plain = Plain(R"("prompt":"x","use_beam_search":true)");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->options.beams, (BeamParams{.width = 4}));
  const auto all = Plain(
      R"("prompt":"x","use_beam_search":true,"beam_width":6,"n":2,"length_penalty":0.5,
         "early_stopping":"never","temperature":0)");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->options.beams,
            (BeamParams{.width = 6, .length_penalty = 0.5, .early_stopping = BeamStop::kNever}));
  EXPECT_EQ(all->options.n, 2u);
  const auto chat = Chat(R"("messages":[{"role":"user","content":"x"}],"use_beam_search":true,
                            "n":3,"early_stopping":true)");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->options.beams, (BeamParams{.width = 3, .early_stopping = BeamStop::kFull}));
  const auto best_of = Plain(R"("prompt":"x","use_beam_search":true,"best_of":5)");
  ASSERT_TRUE(best_of.ok()) << best_of.status();
  EXPECT_EQ(best_of->options.beams.width, 5u);
  EXPECT_FALSE(best_of->options.best_of.has_value());
  EXPECT_EQ(
      Plain(R"("prompt":"x","use_beam_search":false,"length_penalty":1)")->options.beams.width, 0u);
}

TEST(CompletionRequestTest, EveryParameterArrives) {
  const auto request = Plain(
      R"("prompt":[1,2],"max_tokens":3,"temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1,
         "presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.1,"seed":-2,"n":2,
         "best_of":3,"stop":["a","b"],"stop_token_ids":[5],"logit_bias":{"7":-100},"min_tokens":2,
         "ignore_eos":true,"logprobs":4,"user":"u","priority":-3,"suffix":null})"
      "");
  const auto shut = Plain(
      R"("prompt":[1,2],"max_tokens":3,"temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1,
         "presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.1,"seed":-2,"n":2,
         "best_of":3,"stop":["a","b"],"stop_token_ids":[5],"logit_bias":{"7":-100},"min_tokens":2,
         "ignore_eos":true,"logprobs":4,"user":"u","priority":-3,"suffix":null)");
  EXPECT_FALSE(request.ok()) << "one brace too many";
  ASSERT_TRUE(shut.ok()) << shut.status();

  const client::GenerateOptions& o = shut->options;
  EXPECT_THAT(std::get<std::vector<TokenId>>(shut->prompts.at(0)), ElementsAre(1, 2));
  EXPECT_EQ(o.max_tokens, 3u);
  EXPECT_EQ(o.temperature, 0.5f);
  EXPECT_EQ(o.top_p, 0.9f);
  EXPECT_EQ(o.top_k, 0u);
  EXPECT_EQ(o.min_p, 0.1f);
  EXPECT_EQ(o.presence_penalty, 1.0f);
  EXPECT_EQ(o.frequency_penalty, -1.0f);
  EXPECT_EQ(o.repetition_penalty, 1.1f);
  EXPECT_EQ(o.seed, UINT64_MAX - 1);
  EXPECT_EQ(o.n, 2u);
  EXPECT_EQ(o.best_of, 3u);
  EXPECT_EQ(shut->choices, 2u);
  EXPECT_THAT(o.stop, ElementsAre("a", "b"));
  EXPECT_THAT(o.stop_tokens, ElementsAre(5));
  EXPECT_THAT(o.logit_bias, ElementsAre(std::pair(7, -100.0f)));
  EXPECT_EQ(o.min_tokens, 2u);
  EXPECT_TRUE(o.ignore_eos);
  EXPECT_EQ(o.logprobs, 4u);
  EXPECT_EQ(o.priority, -3);
}

TEST(CompletionRequestTest, WhatTextIsShownIsTheRequestsToSay) {
  const auto usual = Plain(R"("prompt":"x")");
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_FALSE(usual->options.keep_special || usual->options.include_stop || usual->tokens_as_ids ||
               usual->return_ids);
  EXPECT_TRUE(usual->include_reasoning);
  const auto request =
      Plain(R"("prompt":"x","skip_special_tokens":false,"include_stop_str_in_output":true,
               "return_tokens_as_token_ids":true,"return_token_ids":true)");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->options.keep_special);
  EXPECT_TRUE(request->options.include_stop);
  EXPECT_TRUE(request->tokens_as_ids);
  EXPECT_TRUE(request->return_ids && request->options.return_prompt);
  const auto chat = Chat(absl::StrCat(
      kMessages, R"(,"include_reasoning":false,"thinking_token_budget":0,"logprobs":true)"));
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_FALSE(chat->include_reasoning);
  EXPECT_EQ(chat->thinking_tokens_max, 0u);
}

TEST(CompletionRequestTest, NullIsAbsent) {
  const auto request = Plain(
      R"("prompt":"x","max_tokens":null,"stop":null,"n":null,"logit_bias":null,"stream":null,
         "stream_options":null,"logprobs":null,"response_format":null,"bogus":null)");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->options.max_tokens, 16u);
  EXPECT_THAT(request->options.stop, IsEmpty());
}

TEST(CompletionRequestTest, DecimalsThatAreWholeAreIntegers) {
  const auto request = Plain(R"("prompt":[1.0,2],"max_tokens":100.0,"seed":-3.0,"n":2.0)");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->options.max_tokens, 100u);
  EXPECT_EQ(request->options.n, 2u);
  EXPECT_EQ(std::get<std::vector<TokenId>>(request->prompts.at(0)), (std::vector<TokenId>{1, 2}));
}

TEST(CompletionRequestTest, ASeedOfMinusOneIsDrawn) {
  EXPECT_FALSE(Plain(R"("prompt":"x","seed":-1)")->options.seed.has_value());
  EXPECT_EQ(Plain(R"("prompt":"x","seed":0)")->options.seed, 0u);
}

TEST(CompletionRequestTest, PromptsComeInFourForms) {
  EXPECT_EQ(Plain(R"("prompt":["a","b"])")->prompts.size(), 2u);
  EXPECT_EQ(Plain(R"("prompt":[[1],[2,3]])")->prompts.size(), 2u);
  EXPECT_EQ(Plain(R"("prompt":[1,2,3])")->prompts.size(), 1u);
  EXPECT_EQ(Plain(R"("prompt":"abc")")->prompts.size(), 1u);
}

TEST(CompletionRequestTest, NewerNamesWin) {
  const auto chat = Chat(absl::StrCat(kMessages, R"(,"max_tokens":5,"max_completion_tokens":6)"));
  EXPECT_EQ(chat->options.max_tokens, 6u);
  const auto developer = Chat(R"("messages":[{"role":"developer","content":"be brief"}])");
  EXPECT_EQ(std::get<std::vector<client::ChatMessage>>(developer->prompts.at(0)).at(0).role,
            "system");
}

TEST(CompletionRequestTest, PartsOfTextAreJoinedByLines) {
  const auto chat = Chat(
      R"("messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
         {"role":"assistant","content":null},{"role":"user","name":"Eva","content":""}])");
  ASSERT_TRUE(chat.ok()) << chat.status();
  const auto& messages = std::get<std::vector<client::ChatMessage>>(chat->prompts.at(0));
  EXPECT_EQ(messages.at(0).content, "a\nb");
  EXPECT_EQ(messages.at(1).content, "");
}

// openai's parse() adds `parsed` and `parsed_arguments`, LiteLLM `provider_specific_fields`,
// lm-eval a `type`.
TEST(CompletionRequestTest, AnswersComeBackAsClientsGotThem) {
  const auto chat = Chat(
      R"("messages":[{"role":"user","type":"text","content":"x"},
         {"role":"assistant","content":null,"refusal":null,"annotations":[],"parsed":{"a":1},
          "provider_specific_fields":{"refusal":null},
          "tool_calls":[{"id":"c","type":"function","index":0,"provider_specific_fields":{},
            "function":{"name":"f","arguments":"{}","parsed_arguments":{}}}]},
         {"role":"tool","tool_call_id":"c","content":"1","status":"ok"}])");
  ASSERT_TRUE(chat.ok()) << chat.status();
  const auto& messages = std::get<std::vector<client::ChatMessage>>(chat->prompts.at(0));
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(Json::parse(messages[1].json), Json::parse(R"({"role":"assistant","content":"",
      "tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]})"))
      << "templates see what they know";
}

TEST(CompletionRequestTest, StreamOptionsNeedAStream) {
  const auto request = Plain(
      R"("prompt":"x","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->stream && request->include_usage && request->continuous_usage);
}

struct Mistake {
  const char* fields;
  const char* param;
  const char* code;
};
class CompletionMistakeTest : public testing::TestWithParam<Mistake> {};

TEST_P(CompletionMistakeTest, IsNamedWithItsCode) {
  const bool chat = std::string(GetParam().fields).find("messages") != std::string::npos;
  const auto request = chat ? Chat(GetParam().fields) : Plain(GetParam().fields);
  ASSERT_FALSE(request.ok());
  const ApiError error = ToApiError(request.status());
  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(error.param, GetParam().param) << error.message;
  EXPECT_EQ(error.code, GetParam().code) << error.message;
}

INSTANTIATE_TEST_SUITE_P(
    Plain, CompletionMistakeTest,
    testing::Values(
        Mistake{R"("prompt":null)", "prompt", "missing_required_parameter"},
        Mistake{R"("prompt":5)", "prompt", "invalid_type"},
        Mistake{R"("prompt":[])", "prompt", "empty_array"},
        Mistake{R"("prompt":["a",1])", "prompt[1]", "invalid_type"},
        Mistake{R"("prompt":[1,"a"])", "prompt", "invalid_type"},
        Mistake{R"("prompt":[-1])", "prompt", "invalid_value"},
        Mistake{R"("prompt":[1.5])", "prompt", "invalid_type"},
        Mistake{R"("prompt":[4294967296])", "prompt", "invalid_value"},
        Mistake{R"("prompt":["a","b","c"],"n":3)", "prompt", "array_above_max_length"},
        Mistake{R"("prompt":"x","n":9)", "n", "array_above_max_length"},
        Mistake{R"("prompt":"x","n":0)", "n", "integer_below_min_value"},
        Mistake{R"("prompt":"x","max_tokens":1000000000000000000000000000000)", "max_tokens",
                "integer_above_max_value"},
        Mistake{R"("prompt":"x","n":1.5)", "n", "invalid_type"},
        Mistake{R"("prompt":"x","n":0.0)", "n", "integer_below_min_value"},
        Mistake{R"("prompt":"x","seed":9007199254740994.0)", "seed", "invalid_type"},
        Mistake{R"("prompt":"x","max_tokens":18446744073709551615)", "max_tokens",
                "integer_above_max_value"},
        Mistake{R"("prompt":"x","temperature":-0.1)", "temperature", "decimal_below_min_value"},
        Mistake{R"("prompt":"x","top_p":0)", "top_p", "decimal_below_min_value"},
        Mistake{R"("prompt":"x","stop":["a",1])", "stop", "invalid_type"},
        Mistake{R"("prompt":"x","stop":"")", "stop", "empty_string"},
        Mistake{R"("prompt":"x","logit_bias":{"a":1})", "logit_bias", "invalid_value"},
        Mistake{R"("prompt":"x","logit_bias":{"1":101})", "logit_bias.1",
                "decimal_above_max_value"},
        Mistake{R"("prompt":"x","logit_bias":[1])", "logit_bias", "invalid_type"},
        Mistake{R"("prompt":"x","logprobs":21)", "logprobs", "integer_above_max_value"},
        Mistake{R"("prompt":"x","prompt_logprobs":21)", "prompt_logprobs",
                "integer_above_max_value"},
        Mistake{R"("prompt":"x","prompt_logprobs":-1)", "prompt_logprobs",
                "integer_below_min_value"},
        Mistake{R"("prompt":"x","prompt_logprobs":1,"stream":true)", "prompt_logprobs",
                "invalid_value"},
        Mistake{R"("prompt":"x","best_of":1,"n":2)", "best_of", "invalid_value"},
        Mistake{R"("prompt":"x","best_of":2,"stream":true)", "best_of", "invalid_value"},
        Mistake{R"("prompt":"x","use_beam_search":1)", "use_beam_search", "invalid_type"},
        Mistake{R"("prompt":"x","use_beam_search":true,"stream":true)", "use_beam_search",
                "invalid_value"},
        Mistake{R"("prompt":"x","use_beam_search":true,"beam_width":11)", "beam_width",
                "integer_above_max_value"},
        Mistake{R"("prompt":"x","use_beam_search":true,"n":11)", "beam_width", "invalid_value"},
        Mistake{R"("prompt":"x","use_beam_search":true,"beam_width":2,"n":3)", "beam_width",
                "invalid_value"},
        Mistake{R"("prompt":"x","use_beam_search":true,"temperature":0.5)", "temperature",
                "invalid_value"},
        Mistake{R"("prompt":"x","use_beam_search":true,"early_stopping":"soon")", "early_stopping",
                "invalid_value"},
        Mistake{R"("prompt":"x","beam_width":4)", "beam_width", "invalid_value"},
        Mistake{R"("prompt":"x","length_penalty":2)", "length_penalty", "invalid_value"},
        Mistake{R"("prompt":"x","early_stopping":true)", "early_stopping", "invalid_value"},
        Mistake{R"("prompt":"x","stream_options":{})", "stream_options", "invalid_value"},
        Mistake{R"("prompt":"x","stream":true,"stream_options":{"x":1})", "stream_options.x",
                "unknown_parameter"},
        Mistake{R"("prompt":"x","min_tokens":17)", "min_tokens", "invalid_value"},
        Mistake{R"("prompt":"x","suffix":"y")", "suffix", "unsupported_parameter"},
        Mistake{R"("prompt":"x","response_format":"json")", "response_format", "invalid_value"},
        Mistake{R"("prompt":"x","response_format":{"type":"json_schema","json_schema":{}})",
                "response_format", "invalid_value"},
        Mistake{
            R"("prompt":"x","response_format":{"type":"json_schema","json_schema":{"schema":1}})",
            "response_format", "invalid_value"},
        Mistake{R"("prompt":"x","response_format":{"type":"regex","regex":"a*"})",
                "response_format", "invalid_value"},
        Mistake{R"("prompt":"x","structured_outputs":{})", "structured_outputs", "invalid_value"},
        Mistake{R"("prompt":"x","structured_outputs":{"regex":""})", "structured_outputs",
                "invalid_value"},
        Mistake{R"("prompt":"x","structured_outputs":{"choice":[]})", "structured_outputs",
                "invalid_value"},
        Mistake{R"("prompt":"x","structured_outputs":{"regex":"a","choice":["b"]})",
                "structured_outputs", "invalid_value"},
        Mistake{R"("prompt":"x","structured_outputs":{"structural_tag":"a"})", "structured_outputs",
                "invalid_value"},
        Mistake{R"("prompt":"x","structured_outputs":{"regex":"a"},"ignore_eos":true)",
                "ignore_eos", "invalid_value"},
        Mistake{R"("prompt":"x","structured_outputs":{"regex":"a"},)"
                R"("response_format":{"type":"json_object"})",
                "structured_outputs", "invalid_value"},
        Mistake{R"("prompt":"x","guided_regex":"a*")", "guided_regex", "unsupported_parameter"},
        Mistake{R"("prompt":"x","guided_json":{})", "guided_json", "unsupported_parameter"},
        Mistake{R"("prompt":"x","guided_choice":["a"])", "guided_choice", "unsupported_parameter"},
        Mistake{R"("prompt":"x","guided_grammar":"a")", "guided_grammar", "unsupported_parameter"},
        Mistake{R"("prompt":"x","bogus":1)", "bogus", "unknown_parameter"}));

INSTANTIATE_TEST_SUITE_P(
    Chat, CompletionMistakeTest,
    testing::Values(
        Mistake{R"("messages":[])", "messages", "empty_array"},
        Mistake{R"("messages":{})", "messages", "invalid_type"},
        Mistake{R"("messages":["hi"])", "messages[0]", "invalid_type"},
        Mistake{R"("messages":[{"content":"x"}])", "messages[0].role",
                "missing_required_parameter"},
        Mistake{R"("messages":[{"role":"robot","content":"x"}])", "messages[0].role",
                "invalid_value"},
        Mistake{R"("messages":[{"role":"user"}])", "messages[0].content",
                "missing_required_parameter"},
        Mistake{R"("messages":[{"role":"user","content":[{"type":"image_url"}]}])",
                "messages[0].content[0].type", "unsupported_parameter"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"colour":1)", "colour",
                "unknown_parameter"},
        Mistake{R"("messages":[{"role":"user","content":"x","audio":{}}])", "messages[0].audio",
                "unsupported_parameter"},
        Mistake{R"("messages":[{"role":"assistant","tool_calls":[1]}])",
                "messages[0].tool_calls[0]", "invalid_type"},
        Mistake{R"("messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}])",
                "messages[0].tool_calls[0].function", "missing_required_parameter"},
        Mistake{
            R"("messages":[{"role":"user","content":"x","tool_calls":[{"function":{"name":"f"}}]}])",
            "messages[0].tool_calls", "invalid_value"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"tools":[{}])", "tools[0].type",
                "unsupported_parameter"},
        Mistake{
            R"("messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{}}])",
            "tools[0].function.name", "missing_required_parameter"},
        Mistake{
            R"("messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a b"}}])",
            "tools[0].function.name", "invalid_value"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"tool_choice":"required")",
                "tool_choice", "invalid_value"},
        Mistake{
            R"("messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}})",
            "tool_choice", "invalid_value"},
        Mistake{
            R"("messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"string"}}}],"tool_choice":"required")",
            "tools[0].function.parameters.type", "invalid_value"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"functions":[{}])", "functions",
                "unsupported_parameter"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"chat_template":"x")",
                "chat_template", "unsupported_parameter"},
        Mistake{
            R"("messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"messages":[]})",
            "chat_template_kwargs", "invalid_value"},
        Mistake{
            R"("messages":[{"role":"user","content":"x"}],"continue_final_message":true,"add_generation_prompt":true)",
            "continue_final_message", "invalid_value"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"reasoning_effort":"great")",
                "reasoning_effort", "invalid_value"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"bad_words":[""])", "bad_words",
                "empty_string"},
        Mistake{
            R"("messages":[{"role":"user","content":"x"}],"bad_words":["a"],"response_format":{"type":"json_object"})",
            "bad_words", "invalid_value"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"truncate_prompt_tokens":0)",
                "truncate_prompt_tokens", "integer_below_min_value"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"truncation_side":"up")",
                "truncation_side", "invalid_value"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"top_logprobs":2)", "top_logprobs",
                "invalid_value"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"prompt":"y")", "prompt",
                "unknown_parameter"},
        Mistake{R"("messages":[{"role":"user","content":"x"}],"max_tokens":0)", "max_tokens",
                "integer_below_min_value"}));

TEST(CompletionRequestTest, SchemasOfDemandedCallsFitIntoAForm) {
  const auto tool = [](const std::string& name) {
    return absl::StrCat(R"({"type":"function","function":{"name":")", name,
                        R"(","parameters":{"type":"object","description":")",
                        std::string(kOutputFormBytesMax / 2, 'x'), R"("}}})");
  };
  const std::string fields =
      absl::StrCat(kMessages, R"(,"tools":[)", tool("f"), ",", tool("g"), "]");
  EXPECT_TRUE(Chat(fields).ok());
  EXPECT_TRUE(Chat(fields + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})").ok());

  const absl::Status refused = Chat(fields + R"(,"tool_choice":"required")").status();
  EXPECT_EQ(ToApiError(refused).param, "tools") << refused;
  EXPECT_EQ(ToApiError(refused).http_status, 400);
}

TEST(CompletionRequestTest, FormsOfOutputAreRead) {
  const auto form = [](const std::string& fields) {
    const auto request = Chat(std::string(kMessages) + fields);
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? request->options.form : OutputForm{};
  };
  using Kind = OutputForm::Kind;
  EXPECT_TRUE(form(R"(,"response_format":{"type":"text"},"structured_outputs":null)").any());
  EXPECT_EQ(form(R"(,"response_format":{"type":"json_object"})"),
            (OutputForm{Kind::kJsonSchema, R"({"type":"object"})"}));
  // In the order that was sent: answers have their properties so.
  EXPECT_EQ(form(R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n",)"
                 R"("strict":true,"schema":{"type":"object","properties":{"z":{},"a":{}}}}})"),
            (OutputForm{Kind::kJsonSchema, R"({"type":"object","properties":{"z":{},"a":{}}})"}));
  EXPECT_EQ(form(R"(,"structured_outputs":{"regex":"a+","json":null})"),
            (OutputForm{Kind::kRegex, "a+"}));
  // What is not served is no form either where it is null, as clients write what they leave out.
  EXPECT_EQ(form(R"(,"structured_outputs":{"json_object":null,"regex":"a+","whitespace":null})"),
            (OutputForm{Kind::kRegex, "a+"}));
  EXPECT_EQ(form(R"(,"structured_outputs":{"json":"{}"})"), (OutputForm{Kind::kJsonSchema, "{}"}));
  EXPECT_EQ(form(R"(,"structured_outputs":{"choice":["a","b\"\n"]})"),
            (OutputForm{Kind::kGrammar, R"(root ::= "a" | "b\"\n")"}));
  EXPECT_EQ(form(R"(,"structured_outputs":{"grammar":"root ::= \"x\""})"),
            (OutputForm{Kind::kGrammar, "root ::= \"x\""}));
}

TEST(CompletionRequestTest, ToolsAndTheirHistoryAreRead) {
  const auto request = Chat(
      R"("messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,)"
      R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},)"
      R"({"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"42"}]},)"
      R"({"role":"function","name":"f","content":"43"}],)"
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}],)"
      R"("parallel_tool_calls":false,"chat_template_kwargs":{"enable_thinking":true},)"
      R"("reasoning_effort":"none")");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->tools.choice, ToolChoice::kAuto);
  EXPECT_FALSE(request->tools.parallel);
  EXPECT_TRUE(request->tools.Has("f"));
  EXPECT_EQ(Json::parse(request->options.chat.arguments_json),
            Json::parse(R"({"enable_thinking":true,"reasoning_effort":"none"})"));
  const auto& messages = std::get<std::vector<client::ChatMessage>>(request->prompts[0]);
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_TRUE(messages[0].json.empty());
  EXPECT_EQ(Json::parse(messages[1].json),
            Json::parse(R"({"role":"assistant","content":"","tool_calls":[{"id":"c1","type":)"
                        R"("function","function":{"name":"f","arguments":"{}"}}]})"));
  EXPECT_EQ(Json::parse(messages[2].json),
            Json::parse(R"({"role":"tool","content":"42","tool_call_id":"c1"})"));
  EXPECT_EQ(Json::parse(messages[3].json),
            Json::parse(R"({"role":"tool","content":"43","name":"f"})"));
}

// Answers would end within arguments that are none.
TEST(CompletionRequestTest, ArgumentsOfADemandedCallAreObjects) {
  const auto demanded = [](const std::string& parameters) {
    return Chat(std::string(kMessages) +
                R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)" +
                parameters + R"(}}],"tool_choice":"required")");
  };
  const auto request = demanded(R"({"description":"d","required":["a"]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->tools.functions[0].parameters,
            Json::parse(R"({"description":"d","required":["a"],"type":"object"})"));
  for (const char* parameters :
       {R"({"properties":{"a":{}}})", R"({"const":{"a":1}})", R"({"enum":[{},{"a":1}]})",
        R"({"anyOf":[{"$ref":"#/$defs/d"},{"type":"object"}],"$defs":{"d":{"properties":{}}}})",
        R"({"$ref":"#/$defs/d","$defs":{"d":{"oneOf":[{"type":["object"]}]}}})",
        R"({"$ref":"#/$defs/none"})", R"({"$ref":"#"})"}) {
    const auto taken = demanded(parameters);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->tools.functions[0].parameters, Json::parse(parameters)) << "as it was";
  }
  for (const char* parameters :
       {R"({"const":1})", R"({"enum":[{},"a"]})",
        R"({"anyOf":[{"type":"object"},{"type":"null"}]})", R"({"oneOf":[{"type":"object"},{}]})",
        R"({"anyOf":[{"$ref":"#/$defs/d"}],"$defs":{"d":true}})"}) {
    const absl::Status status = demanded(parameters).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << parameters;
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr("'tools[0].function.parameters' must be a schema of objects"))
        << parameters;
  }
}

TEST(CompletionRequestTest, WithoutAChoiceOfToolsTheTemplateGetsNone) {
  const auto request =
      Chat(std::string(kMessages) +
           R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->tools.json, "");
}

TEST(CompletionRequestTest, BodiesThatAreNoObjectsAreRefused) {
  for (const std::string& body :
       {std::string(""), std::string("nul"), std::string("[]"), std::string("\"x\""),
        std::string("{\"a\":\"\xff\"}"), std::string(65, '[') + std::string(65, ']')}) {
    EXPECT_FALSE(ParseBody(body).ok()) << body;
  }
  EXPECT_TRUE(ParseBody(R"({"a":"[[[[\"[{"})").ok());
}

}  // namespace
}  // namespace lamina::gateway
