// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/version.h"

namespace lamina::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr char kChat[] =
    R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m",)"
    R"("messages":[{"role":"user","content":"Hi"}],"max_completion_tokens":7,"stop":"x",)"
    R"("logit_bias":{"5":-1.5},"tools":[],"stream":false}})";
constexpr char kText[] =
    R"({"custom_id":"b","method":"POST","url":"/v1/completions","body":{"prompt":[1,2],)"
    R"("temperature":0,"n":2,"stop":["x","y"],"seed":3}})";

BatchRequest One(const std::string& line) {
  const BatchFile file = ParseBatch(line);
  EXPECT_THAT(file.problems, ::testing::IsEmpty());
  return file.requests.size() == 1 ? file.requests.front() : BatchRequest();
}

std::string Body(const std::string& body) {
  return R"({"custom_id":"c","url":"/v1/completions","body":)" + body + "}";
}

TEST(BatchFileTest, ReadsAChat) {
  const BatchRequest request = One(kChat);

  ASSERT_TRUE(request.status.ok()) << request.status;
  EXPECT_EQ(request.custom_id, "a");
  EXPECT_TRUE(request.chat);
  const auto& messages = std::get<std::vector<client::ChatMessage>>(request.options.prompt);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].json, R"({"role":"user","content":"Hi"})");
  EXPECT_EQ(request.options.max_tokens, 7u);
  EXPECT_EQ(request.options.temperature, 1.0f) << "OpenAI's default";
  EXPECT_THAT(request.options.stop, ElementsAre("x"));
  EXPECT_THAT(request.options.logit_bias, ElementsAre(std::pair<TokenId, float>(5, -1.5f)));
}

TEST(BatchFileTest, AChatIsReadAsByTheGateway) {
  const BatchRequest request =
      One(R"({"custom_id":"a","url":"/v1/chat/completions","body":{"messages":[)"
          R"({"role":"developer","content":"x"},{"role":"user","content":"y"},)"
          R"({"role":"function","name":"f","content":"z"}]}})");

  ASSERT_TRUE(request.status.ok()) << request.status;
  const auto& messages = std::get<std::vector<client::ChatMessage>>(request.options.prompt);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(Json::parse(messages[0].json)["role"], "system");
  EXPECT_EQ(Json::parse(messages[2].json),
            Json::parse(R"({"role":"tool","name":"f","content":"z"})"));
  EXPECT_EQ(request.options.max_tokens, 2147483647u) << "until the context is full";
}

TEST(BatchFileTest, ToolsAreRefusedWithTheReason) {
  const BatchRequest request =
      One(R"({"custom_id":"a","url":"/v1/chat/completions","body":{"tools":[{"type":"function"}],)"
          R"("messages":[{"role":"user","content":"y"}]}})");

  EXPECT_EQ(request.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(request.status.message()), HasSubstr("answers are not read for calls"));
}

TEST(BatchFileTest, ReadsACompletion) {
  const BatchRequest request = One(kText);

  ASSERT_TRUE(request.status.ok()) << request.status;
  EXPECT_FALSE(request.chat);
  EXPECT_THAT(std::get<std::vector<TokenId>>(request.options.prompt), ElementsAre(1, 2));
  EXPECT_EQ(request.options.temperature, 0.0f);
  EXPECT_EQ(request.options.n, 2u);
  EXPECT_EQ(request.options.seed, 3u);
  EXPECT_THAT(request.options.stop, ElementsAre("x", "y"));
}

TEST(BatchFileTest, BeamSearchesTakeTheWordsOfTheGateway) {
  const BatchRequest plain = One(Body(R"({"prompt":"x","use_beam_search":true})"));
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  EXPECT_EQ(plain.options.beams, (BeamParams{.width = 4}));
  EXPECT_FALSE(plain.options.temperature.has_value()) << "a search draws nothing";
  // Fields that others depend on may come behind these.
  const BatchRequest all =
      One(Body(R"({"early_stopping":"never","length_penalty":0.5,"beam_width":6,)"
               R"("use_beam_search":true,"prompt":"x","n":2,"temperature":0})"));
  ASSERT_TRUE(all.status.ok()) << all.status;
  EXPECT_EQ(all.options.beams,
            (BeamParams{.width = 6, .length_penalty = 0.5, .early_stopping = BeamStop::kNever}));
  EXPECT_EQ(all.options.n, 2u);
  const BatchRequest chat =
      One(R"({"custom_id":"a","url":"/v1/chat/completions","body":{"early_stopping":true,)"
          R"("n":3,"use_beam_search":true,"messages":[{"role":"user","content":"y"}]}})");
  ASSERT_TRUE(chat.status.ok()) << chat.status;
  EXPECT_EQ(chat.options.beams, (BeamParams{.width = 3, .early_stopping = BeamStop::kFull}));
  const BatchRequest best_of = One(Body(R"({"best_of":5,"prompt":"x","use_beam_search":true})"));
  ASSERT_TRUE(best_of.status.ok()) << best_of.status;
  EXPECT_EQ(best_of.options.beams.width, 5u);
  EXPECT_FALSE(best_of.options.best_of.has_value());
}

TEST(BatchFileTest, ACompletionMayBeTheBestOfSeveral) {
  const BatchRequest request = One(Body(R"({"best_of":5,"prompt":"x","n":2})"));
  ASSERT_TRUE(request.status.ok()) << request.status;
  EXPECT_EQ(request.options.best_of, 5u);
  EXPECT_EQ(request.options.n, 2u);
  EXPECT_EQ(request.options.temperature, 1.0f);
  EXPECT_FALSE(One(Body(R"({"prompt":"x","n":2,"best_of":2})")).options.best_of.has_value());
  const absl::Status chat =
      One(R"({"custom_id":"a","url":"/v1/chat/completions","body":{"best_of":2,)"
          R"("messages":[{"role":"user","content":"y"}]}})")
          .status;
  EXPECT_THAT(std::string(chat.message()), HasSubstr("the field best_of is not supported"));
}

TEST(BatchFileTest, WhichAnswersThereAreIsRefusedAsByTheGateway) {
  const struct {
    const char* fields;
    const char* message;
    const char* param;
    const char* code;
  } kWrong[] = {
      {R"("n":129)", "'n' is 129; it must be in [1, 128]", "n", "integer_above_max_value"},
      {R"("n":"2")", "'n' must be an integer, and is a string", "n", "invalid_type"},
      {R"("n":2,"best_of":1)", "'best_of' is 1, less than 'n', which is 2", "best_of",
       "invalid_value"},
      {R"("use_beam_search":1)", "'use_beam_search' must be a boolean, and is an integer",
       "use_beam_search", "invalid_type"},
      {R"("use_beam_search":true,"beam_width":11)", "'beam_width' is 11; it must be in [1, 10]",
       "beam_width", "integer_above_max_value"},
      {R"("use_beam_search":true,"beam_width":2,"n":3)", "a search of 2 beams for 3 answers",
       "beam_width", "invalid_value"},
      {R"("use_beam_search":true,"length_penalty":101)",
       "'length_penalty' is 101; it must be in [-100, 100]", "length_penalty",
       "decimal_above_max_value"},
      {R"("use_beam_search":true,"early_stopping":"soon")",
       "'early_stopping' must be true, false or \"never\"", "early_stopping", "invalid_value"},
      {R"("use_beam_search":true,"temperature":0.5)", "a beam search draws nothing", "temperature",
       "invalid_value"},
      {R"("beam_width":4)", "only for requests with 'use_beam_search': true", "beam_width",
       "invalid_value"},
  };
  for (const auto& wrong : kWrong) {
    const BatchRequest request = One(Body(absl::StrCat(R"({"prompt":"x",)", wrong.fields, "}")));
    EXPECT_EQ(request.status.code(), absl::StatusCode::kInvalidArgument) << wrong.fields;
    EXPECT_THAT(std::string(request.status.message()), HasSubstr(wrong.message));
    const Json error = BatchError(request, request.status)["response"]["body"]["error"];
    EXPECT_EQ(error["param"], wrong.param);
    EXPECT_EQ(error["code"], wrong.code);
  }
}

TEST(BatchFileTest, ACompletionEndsWhereTheGatewayEndsIt) {
  EXPECT_EQ(One(Body(R"({"prompt":"x"})")).options.max_tokens, 16u);
  EXPECT_EQ(One(Body(R"({"prompt":"x","max_tokens":null})")).options.max_tokens, 16u);
  EXPECT_EQ(One(Body(R"({"prompt":"x","max_tokens":600})")).options.max_tokens, 600u);
}

TEST(BatchFileTest, WhatIsAbsentOrChangesNothingIsTaken) {
  for (const char* fields :
       {R"("logprobs":null)", R"("suffix":null,"best_of":null)", R"("echo":false)",
        R"("safety_identifier":"u","prompt_cache_key":"k","prediction":{"type":"content"})"}) {
    const BatchRequest request = One(Body(absl::StrCat(R"({"prompt":"x",)", fields, "}")));
    EXPECT_TRUE(request.status.ok()) << request.status;
  }
  const BatchRequest chat =
      One(R"({"custom_id":"a","url":"/v1/chat/completions","body":{"logprobs":false,)"
          R"("top_logprobs":null,"messages":[{"role":"user","content":"y"}]}})");
  EXPECT_TRUE(chat.status.ok()) << chat.status;
}

TEST(BatchFileTest, TheNewerNameOfTheMostTokensCounts) {
  for (const char* fields : {R"("max_tokens":600,"max_completion_tokens":20)",
                             R"("max_completion_tokens":20,"max_tokens":600)",
                             R"("max_completion_tokens":20,"max_tokens":null)"}) {
    const BatchRequest request = One(Body(absl::StrCat(R"({"prompt":"x",)", fields, "}")));
    ASSERT_TRUE(request.status.ok()) << request.status;
    EXPECT_EQ(request.options.max_tokens, 20u) << fields;
  }
  EXPECT_EQ(
      One(Body(R"({"prompt":"x","max_tokens":6,"max_completion_tokens":null})")).options.max_tokens,
      6u);
}

TEST(BatchFileTest, OneFieldHasTheForm) {
  const std::string regex = R"("structured_outputs":{"regex":"[0-9]+"})";
  const std::string text = R"("response_format":{"type":"text"})";
  const std::string json = R"("response_format":{"type":"json_object"})";
  for (const std::string& fields : {regex + "," + text, text + "," + regex}) {
    const BatchRequest request = One(Body(R"({"prompt":"x",)" + fields + "}"));
    ASSERT_TRUE(request.status.ok()) << request.status;
    EXPECT_EQ(request.options.form.kind, OutputForm::Kind::kRegex) << fields;
  }
  for (const std::string& fields : {regex + "," + json, json + "," + regex}) {
    const absl::Status refused = One(Body(R"({"prompt":"x",)" + fields + "}")).status;
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << fields;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("exclude each other"));
  }
}

TEST(BatchFileTest, NumbersAreTakenWholeOrRefused) {
  const std::string prompt = R"({"prompt":"x",)";

  EXPECT_EQ(One(Body(prompt + R"("max_tokens":4294967295})")).options.max_tokens, 4294967295u);
  EXPECT_EQ(One(Body(prompt + R"("seed":4294967297})")).options.seed, 4294967297u);
  const absl::Status refused = One(Body(prompt + R"("max_tokens":4294967297})")).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_tokens is not at most 4294967295"));
}

TEST(BatchFileTest, NumbersAreReadAsByTheGateway) {
  const std::string prompt = R"({"prompt":"x",)";
  const auto options = [&](const std::string& field) {
    const BatchRequest request = One(Body(prompt + field + "}"));
    EXPECT_TRUE(request.status.ok()) << request.status;
    return request.options;
  };

  EXPECT_EQ(options(R"("max_tokens":7.0)").max_tokens, 7u);
  EXPECT_EQ(options(R"("top_k":-1)").top_k, 0u);
  EXPECT_EQ(options(R"("top_k":5)").top_k, 5u);
  EXPECT_EQ(options(R"("seed":18446744073709551615)").seed, 18446744073709551615u);
  EXPECT_EQ(options(R"("seed":-2)").seed, 18446744073709551614u);
  EXPECT_FALSE(options(R"("seed":-1)").seed.has_value()) << "it is drawn";
  for (const char* field : {R"("max_tokens":7.5)", R"("max_tokens":-1)", R"("max_tokens":"7")",
                            R"("top_k":-2)", R"("seed":0.5)", R"("seed":null,"top_k":true)"}) {
    EXPECT_EQ(One(Body(prompt + field + "}")).status.code(), absl::StatusCode::kInvalidArgument)
        << field;
  }
}

TEST(BatchFileTest, WhatIsWrongWithOneRequestIsItsOwn) {
  const std::pair<std::string, std::string> kWrong[] = {
      {R"({"custom_id":"c","url":"/v1/embeddings","body":{}})", "only POST"},
      {R"({"custom_id":"c","method":"GET","url":"/v1/completions","body":{}})", "only POST"},
      {R"({"custom_id":"c","url":"/v1/completions"})", "no prompt"},
      {Body(R"({"prompt":null})"), "no prompt"},
      {R"({"custom_id":"c","url":"/v1/chat/completions","body":{"messages":null}})", "no messages"},
      {Body(R"({"prompt":"x","echo":true})"), "the field echo is not supported"},
      {Body(R"({"prompt":"x","logprobs":0})"), "the field logprobs is not supported"},
      {Body(R"({"prompt":"x","n":-1})"), "'n' is -1; it must be in [1, 128]"},
      {Body(R"({"prompt":"x","temperature":"hot"})"), "temperature is not a number"},
      {Body(R"({"prompt":[1,"x"]})"), "prompt is not"},
      {Body(R"({"prompt":[1,4294967297]})"), "prompt is not a list of token ids: one is too large"},
      {Body(R"({"prompt":"x","stop":[1]})"), "stop is not"},
      {Body(R"({"prompt":"x","logit_bias":{"a":1}})"), "logit_bias is not"},
      {Body(R"({"prompt":"x","ignore_eos":1})"), "ignore_eos is not"},
      {Body(R"({"prompt":"x","stream":true})"), "stream is not false"},
      {Body(R"({"messages":[]})"), "no prompt"},
  };
  for (const auto& [line, message] : kWrong) {
    const BatchRequest request = One(line);
    EXPECT_EQ(request.status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(request.status.message()), HasSubstr(message));
  }
}

TEST(BatchFileTest, LinesThatCanHaveNoResultAreToldAndTheOthersKept) {
  const BatchFile file =
      ParseBatch(std::string(kChat) + "\n\nnot json\n" + kChat + "\n{}\n" + kText);

  EXPECT_EQ(file.requests.size(), 2u);
  EXPECT_THAT(file.problems,
              ::testing::ElementsAre(HasSubstr("line 3"), HasSubstr("line 4: the custom_id a"),
                                     HasSubstr("line 5")));
}

TEST(BatchFileTest, ARequestForAnotherModelIsNotAnswered) {
  BatchFile file = ParseBatch(std::string(kChat) + "\n" + kText);
  CheckModels({"other", "n"}, file.requests);

  EXPECT_EQ(file.requests[0].status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(file.requests[1].status.ok()) << "names none";
  const Json error = BatchError(file.requests[0], file.requests[0].status);
  EXPECT_EQ(error["response"]["status_code"], 404);
  EXPECT_EQ(error["response"]["body"]["error"]["code"], "model_not_found");
}

TEST(BatchFileTest, AModelThatAnswersInChannelsIsForTheGateway) {
  BatchFile file = ParseBatch(std::string(kChat) + "\n" + kText);
  CheckAnswers({.chat_template = "{{ messages[0].content }}<|channel|>final<|message|>"},
               file.requests);

  EXPECT_EQ(file.requests[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.requests[0].status.message()), HasSubstr("send the request to the"));
  EXPECT_TRUE(file.requests[1].status.ok()) << "a completion is the text as it comes";
}

TEST(BatchFileTest, AFormDoesNotBeginWithinAThought) {
  const client::ModelInfo thinks = {
      .chat_template =
          "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}"};
  const client::ModelInfo may_think = {
      .chat_template = "{{ messages[0].content.split('</think>')[-1] }}<think>\n\n</think>\n\n"};
  const auto status = [](const client::ModelInfo& model, const std::string& url,
                         const std::string& body) {
    BatchFile file =
        ParseBatch(R"({"custom_id":"c","url":")" + url + R"(","body":{)" + body + "}}");
    CheckAnswers(model, file.requests);
    return file.requests.at(0).status;
  };
  const std::string messages = R"("messages":[{"role":"user","content":"x"}])";
  const std::string json = R"(,"response_format":{"type":"json_object"})";
  const absl::Status refused = status(thinks, "/v1/chat/completions", messages + json);

  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("begin with a thought"));
  EXPECT_TRUE(status(thinks, "/v1/chat/completions", messages).ok());
  EXPECT_TRUE(status(thinks, "/v1/completions", R"("prompt":"x")" + json).ok());
  EXPECT_TRUE(status(may_think, "/v1/chat/completions", messages + json).ok());
  EXPECT_TRUE(status({}, "/v1/chat/completions", messages + json).ok());
}

TEST(BatchFileTest, ResultsTellWhatIsDoneAndWhereTheyWereCutOff) {
  const BatchRequest request = One(kText);
  const std::string line =
      BatchResult(request, "m", "req-1",
                  {{0, {.text = "A", .finish_reason = client::FinishReason::kStop}}}, 5)
          .dump() +
      "\n";

  std::istringstream cut_off("\n" + line + line.substr(0, line.size() / 2));
  std::istringstream other("something else\n");
  std::istringstream empty;

  const auto done = ReadBatchResults(cut_off);

  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(done->custom_ids, UnorderedElementsAre("b"));
  EXPECT_EQ(done->bytes, 1 + line.size());
  EXPECT_FALSE(ReadBatchResults(other).ok());
  EXPECT_EQ(ReadBatchResults(empty)->bytes, 0u);
}

TEST(BatchFileTest, AFileWithoutALineEndIsNoResultThatWasCutOff) {
  const std::string whole = BatchError(One(kText), absl::InvalidArgumentError("no")).dump();
  for (size_t bytes = 0; bytes < whole.size(); bytes += 3) {
    std::istringstream cut_off(whole.substr(0, bytes));
    const auto done = ReadBatchResults(cut_off);
    ASSERT_TRUE(done.ok()) << bytes << ": " << done.status();
    EXPECT_EQ(done->bytes, 0u);
  }

  std::istringstream other(whole + "\n{\"weights\": [1, 2]}");

  const absl::Status status = ReadBatchResults(other).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("line 2, which has no line end"));
}

TEST(BatchFileTest, ResultsHaveOpenAisForm) {
  const Json result = BatchResult(One(kChat), "m", "req-1",
                                  {{0,
                                    {.text = "Hello",
                                     .finish_reason = client::FinishReason::kLength,
                                     .usage = {.prompt_tokens = 3, .completion_tokens = 2}}},
                                   {1,
                                    {.text = "Ho",
                                     .finish_reason = client::FinishReason::kStop,
                                     .usage = {.prompt_tokens = 3, .completion_tokens = 1}}}},
                                  5);

  EXPECT_EQ(result["custom_id"], "a");
  EXPECT_TRUE(result["error"].is_null());
  EXPECT_EQ(result["response"]["status_code"], 200);
  const Json& body = result["response"]["body"];
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["usage"].dump(), R"({"prompt_tokens":3,"completion_tokens":3,"total_tokens":6})");
  EXPECT_EQ(body["system_fingerprint"].get<std::string>(), absl::StrCat("lamina-", kVersion));
}

TEST(BatchFileTest, ResultsOfALossyPolicySayWhatMakesThemSo) {
  const Json result = BatchResult(One(kText), "m", "req-1",
                                  {{0,
                                    {.text = "A",
                                     .finish_reason = client::FinishReason::kStop,
                                     .usage = {.completion_tokens = 1, .lossy = "a-word"}}}},
                                  5);
  EXPECT_EQ(result["response"]["body"]["system_fingerprint"].get<std::string>(),
            absl::StrCat("lamina-", kVersion, "-a-word"));
}

TEST(BatchFileTest, UsageCountsWhatWasMadeAndIsNotShown) {
  const Json result = BatchResult(
      One(kText), "m", "req-1",
      {{0, {.usage = {.prompt_tokens = 3, .completion_tokens = 2, .left_out_tokens = 6}}},
       {1, {.usage = {.prompt_tokens = 3, .completion_tokens = 2}}}},
      5);

  EXPECT_EQ(result["response"]["body"]["usage"].dump(),
            R"({"prompt_tokens":3,"completion_tokens":10,"total_tokens":13})");
}

TEST(BatchFileTest, ARefusalIsAResultAndAnOutageIsNot) {
  const Json error = BatchError(One(kText), absl::InvalidArgumentError("too long"));

  EXPECT_EQ(error["response"]["status_code"], 400);
  EXPECT_EQ(error["response"]["body"]["error"]["message"], "too long");
  EXPECT_EQ(error["response"]["body"]["error"]["type"], "invalid_request_error");
  EXPECT_TRUE(error["response"]["body"]["error"]["param"].is_null());
  EXPECT_TRUE(error["response"]["body"]["error"]["code"].is_null());
  EXPECT_TRUE(IsTransient(absl::UnavailableError("")));
  EXPECT_TRUE(IsTransient(absl::ResourceExhaustedError("")));
  EXPECT_FALSE(IsTransient(absl::InvalidArgumentError("")));
}

}  // namespace
}  // namespace lamina::cli
