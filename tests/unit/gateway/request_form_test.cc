// SPDX-License-Identifier: Apache-2.0
#include "gateway/request_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/api_error.h"

namespace lamina::gateway {
namespace {

constexpr char kHermes[] =
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{{ messages[0].content }}";
constexpr char kThinker[] =
    "{{ messages[0].content }}{% if add_generation_prompt %}{% if enable_thinking is defined and "
    "enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}";
constexpr char kOpener[] =
    "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}";

CompletionRequest Parsed(const std::string& fields) {
  const auto json =
      ParseBody(R"({"model":"m","messages":[{"role":"user","content":"x"}])" + fields + "}");
  const auto request = ParseChatCompletion(*json, {});
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? *request : CompletionRequest();
}

absl::Status Fit(const client::ModelInfo& model, CompletionRequest& request) {
  return FitToModel(model, ChatShape(model, {}), request);
}

Json FormatOf(const CompletionRequest& request) {
  EXPECT_EQ(request.options.form.kind, OutputForm::Kind::kStructuralTag);
  return Json::parse(request.options.form.text)["format"];
}

constexpr char kTools[] = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";

TEST(RequestFormTest, SamplingIsWhatTheMakersAdviseUnlessTheClientSaysOtherwise) {
  const client::ModelInfo model = {.sampling = {.temperature = 0.6f, .top_k = 20}};
  CompletionRequest request = Parsed("");
  ASSERT_TRUE(Fit(model, request).ok());
  EXPECT_EQ(request.options.temperature, 0.6f);
  EXPECT_EQ(request.options.top_k, 20u);
  EXPECT_FALSE(request.options.top_p.has_value());

  request = Parsed(R"(,"temperature":0,"top_k":-1)");
  ASSERT_TRUE(Fit(model, request).ok());
  EXPECT_EQ(request.options.temperature, 0.0f);
  EXPECT_EQ(request.options.top_k, 0u);

  request = Parsed("");
  ASSERT_TRUE(Fit({}, request).ok());
  EXPECT_EQ(request.options.temperature, 1.0f) << "OpenAI's";
}

TEST(RequestFormTest, ToolsNeedATemplateThatShowsThem) {
  CompletionRequest request = Parsed(kTools);
  EXPECT_EQ(Fit({.chat_template = "{{ messages }}"}, request).code(),
            absl::StatusCode::kInvalidArgument);
  request = Parsed(kTools);
  ASSERT_TRUE(Fit({.chat_template = kHermes}, request).ok());
  EXPECT_EQ(request.family, &HermesFamily());
  EXPECT_TRUE(request.options.form.any());
  EXPECT_EQ(Json::parse(request.options.chat.tools_json)[0]["function"]["name"], "f");
}

TEST(RequestFormTest, ARequiredCallIsAFormOfTheOutput) {
  CompletionRequest request = Parsed(std::string(kTools) + R"(,"tool_choice":"required")");
  ASSERT_TRUE(Fit({.chat_template = kHermes}, request).ok());
  EXPECT_EQ(FormatOf(request)["type"], "tags_with_separator");
  EXPECT_EQ(request.form_field, "tools");
  request = Parsed(std::string(kTools) +
                   R"(,"tool_choice":"required","response_format":{"type":"json_object"})");
  EXPECT_FALSE(Fit({.chat_template = kHermes}, request).ok());
  request = Parsed(std::string(kTools) + R"(,"tool_choice":"required","ignore_eos":true)");
  EXPECT_FALSE(Fit({.chat_template = kHermes}, request).ok());
  request = Parsed(std::string(kTools) + R"(,"tool_choice":"required")");
  ASSERT_TRUE(Fit({.chat_template = "tools [TOOL_CALLS]"}, request).ok());
  EXPECT_EQ(request.options.chat.suffix, "[TOOL_CALLS]");
  EXPECT_TRUE(request.options.keep_special);
}

TEST(RequestFormTest, ACallWithArgumentsInTagsIsJsonWhereItIsRequired) {
  const client::ModelInfo model = {.chat_template =
                                       "{{ tools }}<tool_call>\n<function=f>\n<parameter=p>"};
  CompletionRequest request = Parsed(kTools);
  ASSERT_TRUE(Fit(model, request).ok());
  EXPECT_EQ(request.family, &Qwen3CoderFamily());
  EXPECT_TRUE(request.options.form.any());
  request = Parsed(std::string(kTools) + R"(,"tool_choice":"required")");
  ASSERT_TRUE(Fit(model, request).ok());
  EXPECT_EQ(FormatOf(request)["tags"][0]["begin"],
            "<tool_call>\n{\"name\": \"f\", \"arguments\": ");
}

// A form that binds from the first token on would keep the model from ever calling.
TEST(RequestFormTest, AnswersOfAFormMayBeCallsInstead) {
  const std::string form = R"(,"response_format":{"type":"json_object"})";
  const std::string named = R"(,"tool_choice":{"type":"function","function":{"name":"f"}})";
  CompletionRequest request = Parsed(kTools + form);
  ASSERT_TRUE(Fit({.chat_template = kHermes}, request).ok());
  const Json format = FormatOf(request);
  EXPECT_EQ(format["type"], "or");
  ASSERT_EQ(format["elements"].size(), 2u);
  const Json& calls = format["elements"][0];
  EXPECT_EQ(calls["type"], "tags_with_separator");
  EXPECT_EQ(calls["tags"][0]["begin"], "<tool_call>\n{\"name\": \"f\", \"arguments\": ");
  EXPECT_EQ(calls["tags"][0]["content"]["json_schema"], Json::parse(R"({"type":"object"})"));
  EXPECT_EQ(format["elements"][1]["type"], "json_schema");

  request = Parsed(kTools + form + R"(,"tool_choice":"none")");
  ASSERT_TRUE(Fit({.chat_template = kHermes}, request).ok());
  EXPECT_EQ(request.options.form.kind, OutputForm::Kind::kJsonSchema);
  for (const std::string& demanded : {std::string(R"(,"tool_choice":"required")"), named}) {
    request = Parsed(kTools + form + demanded);
    EXPECT_FALSE(Fit({.chat_template = kHermes}, request).ok());
  }
  // What vLLM has besides is of the whole output, and so is a structural tag.
  request = Parsed(std::string(kTools) + R"(,"structured_outputs":{"choice":["x"]})");
  ASSERT_TRUE(Fit({.chat_template = kHermes}, request).ok());
  EXPECT_EQ(request.options.form.kind, OutputForm::Kind::kGrammar);
  request = Parsed(std::string(kTools) + R"(,"response_format":{"type":"structural_tag",)"
                                         R"("format":{"type":"const_string","value":"x"}})");
  ASSERT_TRUE(Fit({.chat_template = kHermes}, request).ok());
  EXPECT_EQ(FormatOf(request)["type"], "const_string");
}

TEST(RequestFormTest, CallsThatBeginWithASpecialTokenExcludeAForm) {
  const std::string form = R"(,"response_format":{"type":"json_object"})";
  for (const char* chat_template :
       {"tools [TOOL_CALLS]", "{{ tools }} <|channel|>final<|message|>"}) {
    CompletionRequest request = Parsed(kTools + form);
    const absl::Status refused = Fit({.chat_template = chat_template}, request);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << chat_template;
    EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("'tool_choice'"));
    request = Parsed(kTools + form + R"(,"tool_choice":"none")");
    EXPECT_TRUE(Fit({.chat_template = chat_template}, request).ok()) << chat_template;
  }
}

TEST(RequestFormTest, AThoughtComesBeforeCallsAndForms) {
  const std::string thinker = std::string(kHermes) + "{# </think> #}";
  CompletionRequest request =
      Parsed(std::string(kTools) + R"(,"response_format":{"type":"json_object"})");
  ASSERT_TRUE(Fit({.chat_template = thinker}, request).ok());
  const Json format = FormatOf(request);
  ASSERT_EQ(format["elements"].size(), 2u);
  EXPECT_EQ(format["elements"][0]["type"], "optional");
  EXPECT_EQ(format["elements"][1]["type"], "or");
}

// gpt-oss answers in marks, with tools and without.
TEST(RequestFormTest, AFormIsOfTheAnswerBehindItsMark) {
  const client::ModelInfo model = {
      .chat_template = "{{ tools }}<|start|>assistant {# <|channel|>final<|message|> #}"};
  CompletionRequest request = Parsed("");
  ASSERT_TRUE(Fit(model, request).ok());
  EXPECT_EQ(request.family, &HarmonyFamily());
  EXPECT_TRUE(request.thinks());
  EXPECT_TRUE(request.options.keep_special);
  EXPECT_EQ(request.options.chat.suffix, "");

  request = Parsed(R"(,"response_format":{"type":"json_object"})");
  ASSERT_TRUE(Fit(model, request).ok());
  EXPECT_EQ(request.options.chat.suffix, "<|channel|>final<|message|>");

  request = Parsed(std::string(kTools) + R"(,"tool_choice":"required")");
  ASSERT_TRUE(Fit(model, request).ok());
  EXPECT_EQ(request.options.chat.suffix,
            "<|channel|>commentary to=functions <|constrain|>json<|message|>");
}

TEST(RequestFormTest, TheTemplateSaysWhetherAnAnswerBeginsInsideAThought) {
  using T = AnswerReader::Thought;
  const auto thought = [](const char* chat_template, const std::string& fields) {
    CompletionRequest request = Parsed(fields);
    EXPECT_TRUE(Fit({.chat_template = chat_template}, request).ok());
    return request.thought;
  };
  EXPECT_EQ(thought(kHermes, ""), T::kNone);
  EXPECT_EQ(thought(kThinker, ""), T::kMayBe);
  EXPECT_EQ(thought(kThinker, R"(,"chat_template_kwargs":{"enable_thinking":false})"), T::kMayBe);
  EXPECT_EQ(thought(kOpener, ""), T::kOpen);
  EXPECT_EQ(thought(kOpener, R"(,"add_generation_prompt":false)"), T::kMayBe);
}

TEST(RequestFormTest, AThoughtComesBeforeWhatHasAForm) {
  CompletionRequest request = Parsed(R"(,"response_format":{"type":"json_object"})");
  ASSERT_TRUE(Fit({.chat_template = kThinker}, request).ok());
  Json format = FormatOf(request);
  EXPECT_EQ(format["elements"][0]["type"], "optional");
  EXPECT_EQ(format["elements"][1]["type"], "json_schema");

  request = Parsed(R"(,"thinking_token_budget":7)");
  ASSERT_TRUE(Fit({.chat_template = kOpener}, request).ok());
  format = FormatOf(request);
  EXPECT_EQ(format["elements"][0]["elements"][0]["elements"][0]["max_tokens"], 7);
  EXPECT_EQ(format["elements"][1]["type"], "any_text");

  request = Parsed(R"(,"thinking_token_budget":7)");
  EXPECT_FALSE(Fit({.chat_template = kHermes}, request).ok());
}

TEST(RequestFormTest, WordsAreAFormAndTokensAList) {
  CompletionRequest request = Parsed(R"(,"bad_words":["no"])");
  ASSERT_TRUE(Fit({}, request).ok());
  EXPECT_EQ(FormatOf(request)["excludes"], Json::parse(R"(["no"])"));
  request = Parsed(R"(,"bad_words":["no"])");
  ASSERT_TRUE(Fit({.chat_template = kOpener}, request).ok());
  const Json thought = FormatOf(request)["elements"][0]["elements"][0]["elements"][0];
  EXPECT_EQ(thought["excludes"], Json::parse(R"(["no","</think>"])")) << "nor in thoughts";
  request = Parsed(R"(,"bad_words":["no"])");
  ASSERT_TRUE(Fit({.chat_template = kThinker}, request).ok());
  const Json tag = FormatOf(request)["elements"][0]["content"]["elements"][0];
  EXPECT_EQ(tag["content"]["excludes"], Json::parse(R"(["no","</think>"])"));
  EXPECT_EQ(FormatOf(request)["elements"][1]["excludes"], Json::parse(R"(["no","<think>"])"));
  request = Parsed(R"(,"bad_words":["no"],"ignore_eos":true)");
  EXPECT_EQ(ToApiError(Fit({}, request)).param, "ignore_eos");
  request = Parsed(R"(,"allowed_token_ids":[5,6],"logit_bias":{"6":2})");
  ASSERT_TRUE(Fit({}, request).ok());
  EXPECT_EQ(request.options.allowed_tokens, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(request.options.logit_bias, (std::vector<std::pair<TokenId, float>>{{6, 2.0f}}));
}

// It would be parsed, and written again by recursion, where a thought may come before it.
TEST(RequestFormTest, AFormThatIsTooDeepIsRefusedUnparsed) {
  CompletionRequest request =
      Parsed(R"(,"structured_outputs":{"json":")" + std::string(65, '[') + R"("})");
  const absl::Status refused = Fit({.chat_template = kThinker}, request);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("deeper than 64"));
  EXPECT_EQ(ToApiError(refused).param, "structured_outputs");
}

TEST(RequestFormTest, APromptIsCutToWhatLeavesRoom) {
  CompletionRequest request = Parsed(R"(,"truncate_prompt_tokens":-1,"max_tokens":30)");
  ASSERT_TRUE(Fit({.sequence_tokens_max = 100}, request).ok());
  EXPECT_EQ(request.options.prompt_tokens_max, 70u);
  request = Parsed(R"(,"truncate_prompt_tokens":-1)");
  ASSERT_TRUE(Fit({.sequence_tokens_max = 100}, request).ok());
  EXPECT_EQ(request.options.prompt_tokens_max, 84u);
}

// An answer of so many tokens is cut to what fits behind the prompt.
TEST(RequestFormTest, AnAnswerThatFitsNowhereLeavesThePromptHalf) {
  for (const char* wanted : {"51", "100", "3000", "2147483647"}) {
    CompletionRequest request =
        Parsed(absl::StrCat(R"(,"truncate_prompt_tokens":-1,"max_tokens":)", wanted));
    ASSERT_TRUE(Fit({.sequence_tokens_max = 100}, request).ok());
    EXPECT_EQ(request.options.prompt_tokens_max, 50u) << wanted;
  }
  CompletionRequest request = Parsed(R"(,"truncate_prompt_tokens":-1,"max_tokens":3000)");
  ASSERT_TRUE(Fit({.sequence_tokens_max = 1}, request).ok());
  EXPECT_EQ(request.options.prompt_tokens_max, 1u);
}

}  // namespace
}  // namespace lamina::gateway
