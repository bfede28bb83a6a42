// SPDX-License-Identifier: Apache-2.0
#include "gateway/completion_handler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tests/unit/gateway/fake_backend.h"
#include "tests/unit/gateway/occupied_side_work.h"

namespace lamina::gateway {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class CompletionHandlerTest : public testing::Test {
 protected:
  void Start(const std::string& fields, bool chat = false) {
    const auto body = ParseBody("{\"model\":\"m\"," + fields + "}");
    ASSERT_TRUE(body.ok()) << body.status();
    auto request = chat ? ParseChatCompletion(*body, {}) : ParseCompletion(*body, {});
    ASSERT_TRUE(request.ok()) << request.status();
    request->options.policy = policy_;
    request->options.kv = kv_;
    handler_ = std::make_shared<CompletionHandler>(
        *std::move(request),
        CompletionHead{.chat = chat, .id = "id-1", .model = "m", .lossy = lossy_}, nullptr,
        CompletionHandler::Services{
            .backend = backend_, .side_work = side_work_, .metrics = metrics_},
        writer_, [this](const CompletionHandler::Report& report) { reports_.push_back(report); });
    handler_->Start();
  }
  FakeGeneration& generation(size_t i = 0) { return *backend_.generations.at(i); }

  static client::Chunk Text(const std::string& text, uint32_t index = 0, float logprob = -1) {
    return {.index = index,
            .text = text,
            .tokens = {{.token = 5, .logprob = logprob, .text = text}},
            .prompt_tokens = 3};
  }
  static client::Chunk Last(uint32_t index = 0) {
    return {.index = index, .finish_reason = client::FinishReason::kLength, .prompt_tokens = 3};
  }
  // The model has ended by itself.
  static client::Chunk End() {
    return {.tokens = {{.token = 2,
                        .logprob = -0.5f,
                        .top = {{.token = 6, .logprob = -0.75f, .text = "b"}},
                        .text = "<end>",
                        .ends = true}},
            .finish_reason = client::FinishReason::kStop,
            .prompt_tokens = 3};
  }
  // The objects of the stream, without comments and [DONE].
  std::vector<Json> Events() const {
    std::vector<Json> events;
    for (const absl::string_view event : absl::StrSplit(writer_.stream, "\n\n")) {
      if (event.substr(0, 7) == "data: {") {
        events.push_back(Json::parse(event.substr(6)));
      }
    }
    return events;
  }

  std::string lossy_;
  std::string policy_;
  std::string kv_;
  FakeBackend backend_;
  Posted posted_;
  SideWork side_work_{posted_.post()};
  RecordingWriter writer_;
  GatewayMetrics metrics_;
  std::shared_ptr<CompletionHandler> handler_;
  std::vector<CompletionHandler::Report> reports_;
};

TEST_F(CompletionHandlerTest, HeadersWaitForTheFirstEvent) {
  Start(R"("prompt":"x","stream":true)");
  EXPECT_FALSE(writer_.started);
  EXPECT_EQ(generation().options.request_id, "id-1");

  generation().Send(Text("a"));
  EXPECT_TRUE(writer_.started);
  generation().Send(Last());
  generation().Finish(absl::OkStatus());

  EXPECT_TRUE(writer_.ended);
  EXPECT_THAT(writer_.stream, EndsWith("data: [DONE]\n\n"));
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].tokens.prompt, 3u);
  EXPECT_EQ(reports_[0].tokens.completion, 1u);
}

TEST_F(CompletionHandlerTest, AHeaderNamesWhatMakesAnAnswerLossy) {
  lossy_ = "a-word";
  const HttpHeaders expected = {{"x-lamina-lossy", "a-word"}};
  Start(R"("prompt":"x","stream":true)");
  generation().Send(Text("a"));
  EXPECT_EQ(writer_.stream_headers, expected);
  Start(R"("prompt":"x")");
  generation(1).Send(Last());
  generation(1).Finish(absl::OkStatus());
  ASSERT_TRUE(writer_.response.has_value());
  EXPECT_EQ(writer_.response->headers, expected);

  lossy_ = "";
  Start(R"("prompt":"x")");
  generation(2).Send(Last());
  generation(2).Finish(absl::OkStatus());
  EXPECT_EQ(writer_.response->headers, HttpHeaders());
}

TEST_F(CompletionHandlerTest, TimesOfStreamsAreMeasured) {
  Start(R"("prompt":"x","stream":true)");
  generation().Send(Text("a"));
  generation().Send(Text("b"));
  generation().Send(Text("c"));
  EXPECT_EQ(metrics_.time_to_first_token.Take().count, 1u);
  EXPECT_EQ(metrics_.inter_token_latency.Take().count, 2u);
  generation().Finish(absl::InternalError("broken"));
  EXPECT_EQ(metrics_.completion_time.Take().count, 0u);
  EXPECT_THAT(metrics_.Text(), HasSubstr("broken_streams_total{reason=\"error\"} 1"));

  Start(R"("prompt":"x")");
  generation(1).Send(Text("a"));
  generation(1).Send(Last());
  generation(1).Finish(absl::OkStatus());
  EXPECT_EQ(metrics_.completion_time.Take().count, 1u);
  EXPECT_EQ(metrics_.time_to_first_token.Take().count, 1u);
}

TEST_F(CompletionHandlerTest, ARefusalIsAnHttpStatusEvenForAStream) {
  Start(R"("prompt":"x","stream":true)");
  generation().Finish(absl::ResourceExhaustedError("full"));

  ASSERT_TRUE(writer_.response.has_value());
  EXPECT_EQ(writer_.response->status, 429);
  EXPECT_THAT(writer_.response->headers, ElementsAre(std::pair("Retry-After", "1")));
  EXPECT_FALSE(writer_.started);
}

TEST_F(CompletionHandlerTest, AnErrorInAStreamIsAnEvent) {
  Start(R"("prompt":"x","stream":true)");
  generation().Send(Text("a"));
  generation().Finish(absl::UnavailableError("node m0 is gone"));

  EXPECT_THAT(writer_.stream, HasSubstr("data: {\"error\":{\"message\":\"node m0 is gone\""));
  EXPECT_THAT(writer_.stream, EndsWith("data: [DONE]\n\n"));
  EXPECT_TRUE(writer_.ended);
  EXPECT_FALSE(writer_.response.has_value());
}

TEST_F(CompletionHandlerTest, SilenceIsFilledWithComments) {
  Start(R"("prompt":"x","stream":true)");
  handler_->OnSilence();
  EXPECT_TRUE(writer_.started);
  EXPECT_EQ(writer_.stream, ": keep-alive\n\n");

  Start(R"("prompt":"x")");
  writer_.stream.clear();
  handler_->OnSilence();
  EXPECT_THAT(writer_.stream, IsEmpty()) << "an answer in one piece has nothing to say";
}

TEST_F(CompletionHandlerTest, ASlowReaderIsNotReadFor) {
  Start(R"("prompt":"x","stream":true)");
  EXPECT_EQ(generation().asked, 1);
  writer_.pending = CompletionHandler::kPendingBytesMax + 1;
  generation().Send(Text("a"));
  EXPECT_EQ(generation().asked, 0);

  writer_.pending = 0;
  handler_->OnDrained();
  EXPECT_EQ(generation().asked, 1);
  handler_->OnDrained();
  EXPECT_EQ(generation().asked, 1) << "it had been asked already";
}

TEST_F(CompletionHandlerTest, AClientThatGoesCancelsEverything) {
  Start(R"("prompt":["x","y"])");
  handler_->OnGone();

  EXPECT_TRUE(generation(0).cancelled && generation(1).cancelled);
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(reports_[0].status));
  handler_->OnDrained();
  handler_->OnSilence();
  EXPECT_FALSE(writer_.started);
}

TEST_F(CompletionHandlerTest, OneFailureEndsABatch) {
  Start(R"("prompt":["x","y"])");
  generation(1).Finish(absl::InvalidArgumentError("no"));

  EXPECT_TRUE(generation(0).cancelled);
  EXPECT_EQ(writer_.response->status, 400);
}

TEST_F(CompletionHandlerTest, ChoicesOfABatchAreNumberedThrough) {
  Start(R"("prompt":["x","y"],"n":2)");
  EXPECT_EQ(generation(1).options.request_id, "id-1-1");
  for (size_t p = 0; p < 2; ++p) {
    for (uint32_t c = 0; c < 2; ++c) {
      generation(p).Send(Text(p == 0 ? "a" : "b", c));
      generation(p).Send(Last(c));
    }
    generation(p).Finish(absl::OkStatus());
  }
  const Json whole = Json::parse(writer_.response->body);
  std::vector<std::pair<int, std::string>> shown;
  for (const Json& choice : whole["choices"]) {
    shown.emplace_back(choice["index"], choice["text"]);
  }
  EXPECT_THAT(shown, ElementsAre(std::pair(0, "a"), std::pair(1, "a"), std::pair(2, "b"),
                                 std::pair(3, "b")));
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 4);
}

TEST_F(CompletionHandlerTest, ALargeAnswerIsWrittenOffTheThreadThatServesOthers) {
  client::Chunk many = Text("ab");
  many.tokens = std::vector<client::TokenOutput>(SideWork::kSmallBytesMax / 100 + 1,
                                                 {.token = 5, .logprob = -1.0f, .text = "ab"});
  const std::vector<std::pair<std::string, client::Chunk>> cases = {
      {R"("prompt":"x")", Text(std::string(SideWork::kSmallBytesMax + 1, 'a'))},
      {R"("prompt":"x","logprobs":0)", many}};
  for (const auto& [fields, chunk] : cases) {
    SCOPED_TRACE(fields);
    writer_.response.reset();
    reports_.clear();
    OccupiedSideWork occupied(side_work_, posted_);
    Start(fields);
    FakeGeneration& answer = *backend_.generations.back();
    answer.Send(chunk);
    answer.Send(Last());
    answer.Finish(absl::OkStatus());
    EXPECT_FALSE(writer_.response.has_value());
    EXPECT_THAT(reports_, IsEmpty());

    occupied.Release();
    posted_.RunUntil([this] { return writer_.response.has_value(); });
    EXPECT_EQ(Json::parse(writer_.response->body)["choices"][0]["text"], chunk.text);
    ASSERT_EQ(reports_.size(), 1u);
    EXPECT_EQ(reports_[0].tokens.completion, chunk.tokens.size());
  }
}

TEST_F(CompletionHandlerTest, ALargeAnswerToAClientThatIsGoneGoesNowhere) {
  OccupiedSideWork occupied(side_work_, posted_);
  Start(R"("prompt":"x")");
  generation().Send(Text(std::string(SideWork::kSmallBytesMax + 1, 'a')));
  generation().Send(Last());
  generation().Finish(absl::OkStatus());
  handler_->OnGone();
  backend_.generations.clear();

  occupied.Release();
  posted_.RunUntil([this] { return handler_.use_count() == 1; });

  EXPECT_FALSE(writer_.response.has_value());
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(reports_[0].status));
}

// Its tokens are generated: turning it away would throw them away, and the client ask once more.
TEST_F(CompletionHandlerTest, ALargeAnswerIsWrittenHoweverManyWait) {
  OccupiedSideWork occupied(side_work_, posted_);
  const auto newcomer = [this] {
    return side_work_.Do(
        SideWork::kSmallBytesMax + 1, [] { return 0; }, [](int) {});
  };
  for (size_t i = 0; i < SideWork::kWaitingMax; ++i) {
    const absl::Status begun = newcomer();
    ASSERT_TRUE(begun.ok()) << begun;
  }
  ASSERT_TRUE(absl::IsResourceExhausted(newcomer()));
  const std::string text(SideWork::kSmallBytesMax + 1, 'a');
  Start(R"("prompt":"x")");
  generation().Send(Text(text));
  generation().Send(Last());
  generation().Finish(absl::OkStatus());
  EXPECT_FALSE(writer_.response.has_value());

  occupied.Release();
  posted_.RunUntil([this] { return writer_.response.has_value(); });

  EXPECT_EQ(writer_.response->status, 200);
  EXPECT_EQ(Json::parse(writer_.response->body)["choices"][0]["text"], text);
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_TRUE(reports_[0].status.ok()) << reports_[0].status;
}

TEST_F(CompletionHandlerTest, BestOfCountsWhatIsNotShown) {
  Start(R"("prompt":"x","best_of":3,"n":1)");
  EXPECT_EQ(generation().options.n, 1u);
  EXPECT_EQ(generation().options.best_of, 3u);
  generation().Send(Text("b"));
  client::Chunk last = Last();
  last.usage.left_out_tokens = 2;
  generation().Send(last);
  generation().Finish(absl::OkStatus());

  const Json whole = Json::parse(writer_.response->body);
  ASSERT_EQ(whole["choices"].size(), 1u);
  EXPECT_EQ(whole["choices"][0]["text"], "b");
  EXPECT_TRUE(whole["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(whole["usage"]["completion_tokens"], 3);
}

TEST_F(CompletionHandlerTest, UsageComesLastWhenAskedFor) {
  Start(R"("messages":[{"role":"user","content":"x"}],"stream":true,
           "stream_options":{"include_usage":true})",
        /*chat=*/true);
  generation().Send(Text("a"));
  generation().Send(Last());
  generation().Finish(absl::OkStatus());

  const std::vector<Json> events = Events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "length");
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(events[i].contains("usage") && events[i]["usage"].is_null());
  }
  EXPECT_EQ(events[3]["usage"]["total_tokens"], 4);
  EXPECT_EQ(events[3]["choices"], Json::array());
}

TEST_F(CompletionHandlerTest, ContinuousUsageCountsUp) {
  Start(R"("prompt":"x","stream":true,
           "stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  generation().Send(Text("a"));
  generation().Send(Text("b"));
  const std::vector<Json> events = Events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(events[1]["usage"]["completion_tokens"], 2);
  EXPECT_EQ(events[1]["usage"]["prompt_tokens"], 3);
  handler_->OnGone();
}

TEST_F(CompletionHandlerTest, TokensWithoutTextMakeNoEvent) {
  Start(R"("prompt":"x","stream":true)");
  client::Chunk silent = Text("");
  generation().Send(silent);
  EXPECT_THAT(Events(), IsEmpty());
  client::Chunk progress = {.prompt_tokens_done = 2, .prompt_tokens = 3};
  generation().Send(progress);
  EXPECT_THAT(Events(), IsEmpty());
  handler_->OnGone();
}

TEST_F(CompletionHandlerTest, TheTokenThatEndsIsListedButNoText) {
  Start(R"("prompt":"x","logprobs":1)");
  generation().Send(Text("a"));
  generation().Send(End());
  generation().Finish(absl::OkStatus());

  const Json choice = Json::parse(writer_.response->body)["choices"][0];
  EXPECT_EQ(choice["text"], "a");
  EXPECT_EQ(choice["logprobs"], Json::parse(R"({"text_offset":[0,1],"token_logprobs":[-1.0,-0.5],
      "tokens":["a","<end>"],"top_logprobs":[{"a":-1.0},{"b":-0.75,"<end>":-0.5}]})"));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(CompletionHandlerTest, AStreamListsTheTokenThatEndsWithTheLastOfItsText) {
  Start(R"("prompt":"x","logprobs":1,"stream":true)");
  generation().Send(Text("a"));
  generation().Send(End());
  generation().Finish(absl::OkStatus());

  const std::vector<Json> events = Events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1]["choices"][0]["text"], "");
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["tokens"], Json::parse(R"(["<end>"])"));
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["text_offset"], Json::parse("[1]"));
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "stop");
}

// As lm-eval scores a continuation: it takes all entries but the last for those of the prompt.
TEST_F(CompletionHandlerTest, AnEchoHasOneEntryMoreThanThePrompt) {
  backend_.score = client::ScoreResult{.tokens = {4, 5}, .logprobs = {-0.25f}, .texts = {"x", "y"}};
  Start(R"("prompt":[[4,5]],"max_tokens":1,"logprobs":1,"echo":true)");
  generation().Send(End());
  generation().Finish(absl::OkStatus());

  const Json choice = Json::parse(writer_.response->body)["choices"][0];
  EXPECT_EQ(choice["text"], "xy");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json::parse("[null,-0.25,-0.5]"));
  EXPECT_EQ(choice["logprobs"]["tokens"], Json::parse(R"(["x","y","<end>"])"));
}

// The text of a prompt does not have the special tokens that are put before it.
TEST_F(CompletionHandlerTest, OffsetsAreThoseInTheEchoedText) {
  backend_.score = client::ScoreResult{
      .tokens = {1, 4, 5}, .logprobs = {-0.25f, -0.5f}, .texts = {"<s>", "x", "y"}};
  const std::string fields = R"("prompt":"xy","max_tokens":1,"logprobs":0,"echo":true)";
  Start(fields);
  generation().Send(Text("a"));
  generation().Send(Last());
  generation().Finish(absl::OkStatus());
  const Json whole = Json::parse(writer_.response->body)["choices"][0];
  EXPECT_EQ(whole["text"], "xya");
  EXPECT_EQ(whole["logprobs"]["text_offset"], Json::parse("[0,0,1,2]"));

  Start(fields + R"(,"stream":true)");
  generation(1).Send(Text("a"));
  const std::vector<Json> events = Events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["text_offset"], Json::parse("[0,0,1]"));
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["text_offset"], Json::parse("[2]"));
  handler_->OnGone();
}

TEST_F(CompletionHandlerTest, AChatDoesNotShowTheTokenThatEnds) {
  Start(R"("messages":[{"role":"user","content":"x"}],"logprobs":true)", /*chat=*/true);
  generation().Send(Text("a"));
  generation().Send(End());
  generation().Finish(absl::OkStatus());

  const Json choice = Json::parse(writer_.response->body)["choices"][0];
  ASSERT_EQ(choice["logprobs"]["content"].size(), 1u);
  EXPECT_EQ(choice["logprobs"]["content"][0]["token"], "a");
}

TEST_F(CompletionHandlerTest, EchoWithoutTokensAsksForNone) {
  backend_.score = client::ScoreResult{.tokens = {4, 5}, .logprobs = {-0.25f}, .texts = {"x", "y"}};
  Start(R"("prompt":"xy","max_tokens":0,"echo":true,"logprobs":0)");

  EXPECT_THAT(backend_.generations, IsEmpty());
  const Json whole = Json::parse(writer_.response->body);
  EXPECT_EQ(whole["choices"][0]["text"], "xy");
  EXPECT_EQ(whole["choices"][0]["logprobs"]["token_logprobs"], Json::parse("[null,-0.25]"));
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 0);
}

TEST_F(CompletionHandlerTest, EchoWithoutTokensShowsTheIdsOfThePrompt) {
  backend_.score = client::ScoreResult{.tokens = {4, 5}, .logprobs = {-0.25f}, .texts = {"x", "y"}};
  const std::pair<std::string, std::string> prompts[] = {
      {R"("prompt":"xy")", "[1,2]"},
      {R"("prompt":[7,8,9])", "[7,8,9]"},
      {R"("prompt":"xy","logprobs":0)", "[4,5]"}};
  for (const auto& [prompt, ids] : prompts) {
    SCOPED_TRACE(prompt);
    const std::string fields = prompt + R"(,"max_tokens":0,"echo":true,"return_token_ids":true)";
    Start(fields);
    const Json choice = Json::parse(writer_.response->body)["choices"][0];
    EXPECT_EQ(choice["prompt_token_ids"], Json::parse(ids));
    EXPECT_EQ(choice["token_ids"], Json::array());

    writer_.stream.clear();
    Start(fields + R"(,"stream":true)");
    std::vector<Json> shown;
    for (const Json& event : Events()) {
      if (event["choices"][0].contains("prompt_token_ids")) {
        shown.push_back(event["choices"][0]["prompt_token_ids"]);
      }
    }
    ASSERT_EQ(shown.size(), 1u);
    EXPECT_EQ(shown[0], Json::parse(ids));
  }
  EXPECT_THAT(backend_.generations, IsEmpty());
}

TEST_F(CompletionHandlerTest, EchoAndPromptLogprobsShowAsManyAlternativesAsEachAskedFor) {
  backend_.score =
      client::ScoreResult{.tokens = {4, 5},
                          .logprobs = {-2.0f},
                          .texts = {"x", "y"},
                          .ranks = {{.rank = 3,
                                     .top = {{.token = 8, .logprob = -0.5f, .text = "p"},
                                             {.token = 9, .logprob = -1.0f, .text = "q"}}}}};
  Start(R"("prompt":"xy","max_tokens":0,"echo":true,"logprobs":1,"prompt_logprobs":2)");

  EXPECT_EQ(backend_.scored_options.logprobs, 2u);
  const Json choice = Json::parse(writer_.response->body)["choices"][0];
  EXPECT_EQ(choice["logprobs"]["top_logprobs"], Json::parse(R"([null,{"p":-0.5,"y":-2.0}])"));
  EXPECT_EQ(choice["prompt_logprobs"][1].size(), 3u);
  EXPECT_EQ(choice["prompt_logprobs"][1]["5"]["rank"], 3);
  EXPECT_EQ(choice["prompt_logprobs"][1]["9"]["rank"], 2);
}

TEST_F(CompletionHandlerTest, AChatsPromptIsScoredAsTheTemplateWritesIt) {
  backend_.score = client::ScoreResult{
      .tokens = {1, 2}, .logprobs = {-0.25f}, .texts = {"a", "b"}, .ranks = {{.rank = 1}}};
  Start(R"("messages":[{"role":"user","content":"x"}],"prompt_logprobs":0,"n":2)",
        /*chat=*/true);
  ASSERT_TRUE(backend_.scored_prompt.has_value());
  EXPECT_EQ(std::get<std::vector<TokenId>>(*backend_.scored_prompt), (std::vector<TokenId>{1, 2}));
  for (const uint32_t index : {0u, 1u}) {
    generation().Send(Last(index));
  }
  generation().Finish(absl::OkStatus());
  const Json whole = Json::parse(writer_.response->body);
  ASSERT_EQ(whole["prompt_logprobs"].size(), 2u);
  EXPECT_EQ(whole["prompt_logprobs"][1]["2"]["rank"], 1);
}

TEST_F(CompletionHandlerTest, APromptThatIsCutIsScoredAndEchoedAsItIsLeft) {
  const auto scored = [this](const std::string& fields, bool chat = false) {
    backend_.scored_prompt.reset();
    Start(fields, chat);
    return backend_.scored_prompt.has_value()
               ? std::get<std::vector<TokenId>>(*backend_.scored_prompt)
               : std::vector<TokenId>();
  };
  backend_.tokens.tokens = {1, 2, 3};
  backend_.score = client::ScoreResult{.tokens = {2, 3}, .logprobs = {-1.0f}, .texts = {"x", "y"}};
  const std::string cut = R"(,"truncate_prompt_tokens":2)";
  const std::string echo = R"(,"max_tokens":0,"echo":true)";

  EXPECT_THAT(scored(R"("prompt":"wxy","logprobs":0)" + echo + cut), ElementsAre(2, 3));
  EXPECT_EQ(Json::parse(writer_.response->body)["choices"][0]["text"], "xy");
  EXPECT_THAT(scored(R"("prompt":[7,8,9],"prompt_logprobs":0,"truncation_side":"right")" + cut),
              ElementsAre(7, 8));
  EXPECT_EQ(backend_.generations.back()->options.prompt_tokens_max, 2u);
  EXPECT_THAT(scored(R"("messages":[{"role":"user","content":"x"}],"prompt_logprobs":0)" + cut,
                     /*chat=*/true),
              ElementsAre(2, 3));

  EXPECT_THAT(scored(R"("prompt":"wxy")" + echo + cut), IsEmpty()) << "nobody asks for scores";
  EXPECT_THAT(backend_.detokenized, ElementsAre(2, 3));
  EXPECT_EQ(Json::parse(writer_.response->body)["usage"]["prompt_tokens"], 2);
  scored(R"("prompt":"wxy","truncate_prompt_tokens":3)" + echo);
  EXPECT_EQ(Json::parse(writer_.response->body)["choices"][0]["text"], "wxy") << "it is whole";
}

TEST_F(CompletionHandlerTest, AScoreHasThePolicyAndTheFormOfKvOfItsRequest) {
  policy_ = "fetch_heads";
  kv_ = "int8";
  Start(R"("prompt":"x","prompt_logprobs":0)");
  EXPECT_EQ(backend_.scored_options.policy, "fetch_heads");
  EXPECT_EQ(backend_.scored_options.kv, "int8");

  kv_ = "";
  backend_.score = absl::InvalidArgumentError("policy: 'no' is not one that this cluster prepares");
  Start(R"("prompt":"x","max_tokens":0,"echo":true)");
  EXPECT_EQ(writer_.response->status, 400) << "though neither scores nor tokens are asked for";
}

TEST_F(CompletionHandlerTest, AClientThatLeavesEndsTheScoringOfItsPrompt) {
  backend_.answers_scores = false;
  Start(R"("prompt":"xy","echo":true,"logprobs":0)");
  EXPECT_EQ(backend_.scores_cancelled, 0);
  handler_->OnGone();
  EXPECT_EQ(backend_.scores_cancelled, 1);
  EXPECT_THAT(backend_.generations, IsEmpty());
}

TEST_F(CompletionHandlerTest, EchoOfTokensShowsTheirText) {
  Start(R"("prompt":[1,2],"echo":true,"stream":true)");
  generation().Send(Text("c"));
  generation().Send(Last());
  generation().Finish(absl::OkStatus());
  std::string text;
  for (const Json& event : Events()) {
    text += event["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "abc");
}

TEST_F(CompletionHandlerTest, AFormThatTheCoordinatorRefusesIsNamedAsTheClientDid) {
  const std::pair<std::string, std::string> forms[] = {
      {R"("structured_outputs":{"regex":"(")", "structured_outputs"},
      {R"("response_format":{"type":"json_object")", "response_format"}};
  for (const auto& [fields, param] : forms) {
    Start(R"("prompt":"x",)" + fields + "}");
    backend_.generations.back()->Finish(absl::InvalidArgumentError("the form of the output: no"));
    EXPECT_EQ(Json::parse(writer_.response->body)["error"]["param"], param);
  }
}

TEST_F(CompletionHandlerTest, AFailureBeforeGeneratingIsAnswered) {
  backend_.score = absl::InvalidArgumentError("token 9 is not in the vocabulary");
  Start(R"("prompt":"x","echo":true,"logprobs":0,"max_tokens":4)");
  EXPECT_THAT(backend_.generations, IsEmpty());
  EXPECT_EQ(writer_.response->status, 400);
}

}  // namespace
}  // namespace lamina::gateway
