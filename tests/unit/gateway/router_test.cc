// SPDX-License-Identifier: Apache-2.0
#include "gateway/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/api_error.h"
#include "gateway/static_files.h"
#include "tests/unit/gateway/fake_backend.h"
#include "tests/unit/gateway/occupied_side_work.h"

namespace lamina::gateway {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class RouterTest : public testing::Test {
 protected:
  static HttpRequest Post(const std::string& path, const std::string& body) {
    return {.method = "POST", .path = path, .content_type = "application/json", .body = body};
  }
  static int StatusOf(const std::optional<HttpResponse>& response) {
    return response.has_value() ? response->status : 0;
  }

  FakeBackend backend_;
  Posted posted_;
  SideWork side_work_{posted_.post()};
  RecordingWriter writer_;
};

TEST_F(RouterTest, RefusesBeforeTheBodyIsRead) {
  Router router(backend_, side_work_, {});
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/nothing"})), 404);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/v1/models/"})), 404);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/tokenize"})), 405);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "POST", .path = "/tokenize"})), 415);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "OPTIONS", .path = "/tokenize"})), 405);
  EXPECT_EQ(StatusOf(router.Refuse(Post("/tokenize", ""))), 0);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "HEAD", .path = "/health"})), 0);
}

TEST_F(RouterTest, RefusalsHaveTheShapeOfTheirApi) {
  Router router(backend_, side_work_, {.keys = ApiKeys({"k"})});
  const auto error = [&router](const HttpRequest& head) {
    const auto refusal = router.Refuse(head);
    return Json::parse(refusal.has_value() ? refusal->body : "{}");
  };
  const std::string key = "Bearer k";
  const Json no_key = error({.method = "POST", .path = "/v1/messages"});
  EXPECT_EQ(no_key["type"], "error");
  EXPECT_EQ(no_key["error"]["type"], "authentication_error");
  EXPECT_THAT(no_key["error"]["message"].get<std::string>(), HasSubstr("API key"));
  EXPECT_EQ(error({.method = "POST", .path = "/v1/messages/batches"})["error"]["type"],
            "not_found_error");
  EXPECT_EQ(error({.method = "GET", .path = "/v1/messages", .authorization = key})["error"]["type"],
            "invalid_request_error");
  EXPECT_EQ(
      error({.method = "POST", .path = "/v1/messages/count_tokens", .authorization = key})["type"],
      "error");
  EXPECT_EQ(error({.method = "POST", .path = "/v1/completions"})["error"]["code"],
            "invalid_api_key");

  // Those that come before a route sees the request.
  const absl::Status large = HttpError(413, "body_too_large", "large");
  const Json of_messages = Json::parse(router.ErrorOf("/v1/messages", large).body);
  EXPECT_EQ(of_messages["error"]["type"], "request_too_large");
  EXPECT_EQ(Json::parse(router.ErrorOf("", large).body)["error"]["code"], "body_too_large");
}

TEST_F(RouterTest, KeysGuardAllButWhatProbesNeed) {
  Router router(backend_, side_work_, {.keys = ApiKeys({"k"})});
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/v1/models"})), 401);
  EXPECT_EQ(
      StatusOf(router.Refuse({.method = "GET", .path = "/v1/models", .authorization = "Bearer k"})),
      0);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/health"})), 0);
}

TEST_F(RouterTest, KeysAreReplaced) {
  Router router(backend_, side_work_, {.keys = ApiKeys({"k"})});
  const auto asked_with = [&router](const std::string& key) {
    return StatusOf(router.Refuse(
        {.method = "GET", .path = "/v1/models", .authorization = absl::StrCat("Bearer ", key)}));
  };

  router.SetKeys(ApiKeys({"new"}));

  EXPECT_EQ(asked_with("new"), 0);
  EXPECT_EQ(asked_with("k"), 401);
}

TEST_F(RouterTest, DrainingRefusesWithAWait) {
  Router router(backend_, side_work_, {});
  router.Drain();
  const auto refusal = router.Refuse(Post("/v1/completions", "{}"));
  EXPECT_EQ(StatusOf(refusal), 503);
  EXPECT_THAT(refusal->headers, Contains(Key("Retry-After")));
  router.Handle({.method = "GET", .path = "/health"}, writer_);
  EXPECT_EQ(writer_.response->status, 503);
}

TEST_F(RouterTest, CorsIsOffUnlessAnOriginIsNamed) {
  HttpRequest request = {.method = "OPTIONS", .path = "/v1/models", .origin = "https://a"};
  Router closed(backend_, side_work_, {});
  EXPECT_EQ(StatusOf(closed.Refuse(request)), 405);
  EXPECT_THAT(closed.HeadersFor(request), Not(Contains(Key("Access-Control-Allow-Origin"))));

  Router open(backend_, side_work_, {.cors_origins = {"https://a"}});
  EXPECT_EQ(StatusOf(open.Refuse(request)), 204);
  EXPECT_THAT(open.HeadersFor(request), Contains(Pair("Access-Control-Allow-Origin", "https://a")));
  HttpRequest other = {.method = "GET", .path = "/v1/models", .origin = "https://b"};
  EXPECT_THAT(open.HeadersFor(other), Not(Contains(Key("Access-Control-Allow-Origin"))));
}

TEST_F(RouterTest, PagesOfOtherOriginsMaySendWhatTheyAskFor) {
  Router router(backend_, side_work_, {.cors_origins = {"*"}});
  const auto allowed = [&router](const std::string& asked) {
    const auto answer = router.Refuse(
        {.method = "OPTIONS", .path = "/v1/models", .origin = "https://a", .asked_headers = asked});
    for (const auto& [name, value] : answer.value_or(HttpResponse()).headers) {
      if (name == "Access-Control-Allow-Headers") {
        return value;
      }
    }
    return std::string();
  };
  const std::string asked = "authorization,content-type,x-stainless-os, anthropic-version";
  EXPECT_EQ(allowed(asked), asked);
  for (const std::string& wrong :
       {std::string(), std::string("a\r\nb"), std::string("a: b"), std::string(1025, 'a')}) {
    EXPECT_THAT(allowed(wrong), HasSubstr("authorization, x-api-key")) << wrong;
  }
  HttpRequest request = {.method = "POST", .path = "/v1/completions", .origin = "https://a"};
  EXPECT_THAT(router.HeadersFor(request),
              Contains(Pair("Access-Control-Expose-Headers", HasSubstr("retry-after"))));
}

TEST_F(RouterTest, RequestIdsAreKeptUnlessTheyCouldForgeHeaders) {
  Router router(backend_, side_work_, {});
  HttpRequest good = {.request_id = "abc-1"};
  EXPECT_THAT(router.HeadersFor(good), Contains(Pair("x-request-id", "abc-1")));
  HttpRequest bad = {.request_id = std::string(200, 'x')};
  router.HeadersFor(bad);
  EXPECT_THAT(bad.request_id, HasSubstr("req-"));
  HttpRequest forged = {.request_id = "a b"};
  router.HeadersFor(forged);
  EXPECT_NE(forged.request_id, "a b");
}

TEST_F(RouterTest, ModelsAreFoundUnderAllNames) {
  Router router(backend_, side_work_, {.model_names = {"short", "org/long"}});
  router.Handle({.method = "GET", .path = "/v1/models/org%2Flong"}, writer_);
  EXPECT_THAT(writer_.response->body, HasSubstr(R"("id":"org/long")"));
  router.Handle({.method = "GET", .path = "/v1/models/m"}, writer_);
  EXPECT_EQ(writer_.response->status, 200);
  router.Handle({.method = "GET", .path = "/v1/models/%zz"}, writer_);
  EXPECT_EQ(writer_.response->status, 404);
}

TEST_F(RouterTest, HealthIsThatOfTheCluster) {
  Router router(backend_, side_work_, {});
  router.Handle({.method = "GET", .path = "/health"}, writer_);
  EXPECT_EQ(writer_.response->status, 200);
  backend_.status = client::ClusterStatus{.state = "waiting for m0"};
  router.Handle({.method = "GET", .path = "/health"}, writer_);
  EXPECT_EQ(writer_.response->status, 503);
  EXPECT_THAT(writer_.response->body, HasSubstr("waiting for m0"));
}

TEST_F(RouterTest, MetricsHaveRoutesForPathsAndAreThereWhileDraining) {
  Router router(backend_, side_work_, {.keys = ApiKeys({"k"})});
  EXPECT_EQ(router.RouteOf("/v1/models/a%20b"), "/v1/models/{model}");
  EXPECT_EQ(router.RouteOf("/tokenize"), "/tokenize");
  EXPECT_EQ(router.RouteOf("/.env"), "other");
  router.Drain();
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/metrics"})), 401);
  EXPECT_EQ(
      StatusOf(router.Refuse({.method = "GET", .path = "/metrics", .authorization = "Bearer k"})),
      0);
  router.Handle({.method = "GET", .path = "/metrics"}, writer_);
  EXPECT_THAT(writer_.response->content_type, HasSubstr("text/plain"));
  EXPECT_THAT(writer_.response->body, HasSubstr("lamina_gateway_connections 0\n"));
}

TEST_F(RouterTest, MetricsHaveThoseOfTheCoordinatorsRequestsWhereItAnswers) {
  Router router(backend_, side_work_, {});
  backend_.request_metrics = "vllm:generation_tokens_total{model_name=\"m\"} 7\n";
  router.Handle({.method = "GET", .path = "/metrics"}, writer_);
  EXPECT_THAT(writer_.response->body, HasSubstr("lamina_gateway_connections 0\n"));
  EXPECT_THAT(writer_.response->body,
              HasSubstr("\nvllm:generation_tokens_total{model_name=\"m\"} 7\n"));

  backend_.request_metrics = absl::UnavailableError("the coordinator cannot be reached");
  router.Handle({.method = "GET", .path = "/metrics"}, writer_);
  EXPECT_EQ(writer_.response->status, 200);
  EXPECT_THAT(writer_.response->body, HasSubstr("lamina_gateway_connections 0\n"));
  EXPECT_THAT(writer_.response->body, Not(HasSubstr("vllm:")));
}

TEST_F(RouterTest, ThePageIsForAllAndTheStatusForThoseWithAKey) {
  Router router(backend_, side_work_, {.keys = ApiKeys({"k"})});
  for (const auto& [path, type] :
       {std::pair("/", "text/html"), std::pair("/page.css", "text/css"),
        std::pair("/markdown.js", "text/javascript"), std::pair("/page.js", "text/javascript")}) {
    EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = path})), 0);
    router.Handle({.method = "GET", .path = path}, writer_);
    EXPECT_THAT(writer_.response->content_type, HasSubstr(type));
    EXPECT_THAT(writer_.response->body, HasSubstr("SPDX"));
    EXPECT_THAT(writer_.response->headers,
                Contains(Pair("Content-Security-Policy", HasSubstr("default-src 'none'; script"))));
  }
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/v1/lamina/status"})), 401);
  backend_.status = client::ClusterStatus{.state = "serving", .nodes = {{.name = "m0"}}};
  router.Handle({.method = "GET", .path = "/v1/lamina/status"}, writer_);
  EXPECT_EQ(Json::parse(writer_.response->body)["nodes"][0]["name"], "m0");
  backend_.status = absl::UnavailableError("away");
  router.Handle({.method = "GET", .path = "/v1/lamina/status"}, writer_);
  EXPECT_EQ(writer_.response->status, 503);
}

TEST_F(RouterTest, CompletionsReachTheBackend) {
  Router router(backend_, side_work_, {});
  const auto handler =
      router.Handle(Post("/v1/completions", R"({"model":"m","prompt":"x"})"), writer_);
  ASSERT_EQ(backend_.generations.size(), 1u);
  handler->OnGone();
  EXPECT_TRUE(backend_.generations[0]->cancelled);

  backend_.models = absl::UnavailableError("away");
  Router lost(backend_, side_work_, {});
  lost.Handle(Post("/v1/completions", R"({"model":"m","prompt":"x"})"), writer_);
  EXPECT_EQ(writer_.response->status, 503);
}

TEST_F(RouterTest, HeadersThatNameNothingAreRefusedByName) {
  Router router(backend_, side_work_, {});
  for (const std::string path : {"/v1/completions", "/v1/messages"}) {
    for (const std::string header : {"x-lamina-policy", "x-lamina-kv"}) {
      SCOPED_TRACE(absl::StrCat(path, " ", header));
      RecordingWriter writer;
      HttpRequest request = Post(path, R"({"model":"m","prompt":"x"})");
      (header == "x-lamina-kv" ? request.kv : request.policy) = "caf\xe9";
      EXPECT_EQ(router.Handle(std::move(request), writer), nullptr);
      ASSERT_TRUE(writer.response.has_value());
      EXPECT_EQ(writer.response->status, 400);
      EXPECT_THAT(writer.response->body, HasSubstr(header));
    }
  }
  EXPECT_TRUE(backend_.generations.empty());
}

// They speak of what the client sent, not of the chat that it becomes.
TEST_F(RouterTest, ErrorsOfResponsesNameTheirOwnFields) {
  const std::pair<const char*, const char*> requests[] = {
      {R"("input":"x","max_output_tokens":0)", "max_output_tokens"},
      {R"("input":"x","reasoning":{"effort":"huge"})", "reasoning.effort"},
      {R"("input":"x","text":{"format":{"type":"other"}})", "text.format"},
      {R"("input":"x","tools":[{"type":"function","name":"a b"}])", "tools[0].name"},
      {R"("input":"x","tools":[{"type":"function","name":"f"}])", "tools"},
      {R"("input":[])", "input"},
      {R"("instructions":"S","input":[{"role":"user","content":"x"},
          {"role":"critic","content":"x"}])",
       "input[1].role"},
      {R"("input":[{"role":"user","content":"x"},
          {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
          {"type":"function_call","call_id":"d","name":"f","arguments":5}])",
       "input[2].arguments"},
      {R"("input":[{"type":"function_call","call_id":5,"name":"f","arguments":"{}"}])",
       "input[0].call_id"},
      {R"("input":[{"type":"function_call_output","call_id":5,"output":"x"}])",
       "input[0].call_id"}};
  Router router(backend_, side_work_, {});
  for (const auto& [fields, param] : requests) {
    SCOPED_TRACE(fields);
    RecordingWriter writer;
    router.Handle(Post("/v1/responses", absl::StrCat(R"({"model":"m",)", fields, "}")), writer);
    ASSERT_TRUE(writer.response.has_value());
    EXPECT_EQ(writer.response->status, 400);
    const Json error = Json::parse(writer.response->body)["error"];
    EXPECT_EQ(error["param"], param);
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(absl::StrCat("'", param, "'")));
  }
}

TEST_F(RouterTest, AFormThatTheCoordinatorRefusesIsThatOfItsOwnField) {
  Router router(backend_, side_work_, {});
  const auto handler = router.Handle(
      Post("/v1/responses",
           R"({"model":"m","input":"x","text":{"format":{"type":"json_schema","schema":{}}}})"),
      writer_);
  ASSERT_EQ(backend_.generations.size(), 1u);
  backend_.generations[0]->Finish(absl::InvalidArgumentError("the form of the output: no"));
  ASSERT_TRUE(writer_.response.has_value());
  EXPECT_EQ(Json::parse(writer_.response->body)["error"]["param"], "text.format");
}

TEST_F(RouterTest, ErrorsOfMessagesNameTheirOwnFields) {
  const std::pair<const char*, const char*> requests[] = {
      {R"("stop_sequences":[""])", "'stop_sequences' has"},
      {R"("thinking":{"type":"enabled","budget_tokens":9})", "'thinking.budget_tokens' is not"},
      {R"("tools":[{"name":"a b","input_schema":{}}])", "'tools[0].name' must"},
      {R"("tools":[{"name":"f","input_schema":{"type":"array"}}],"tool_choice":{"type":"any"})",
       "'tools[0].input_schema.type' must"}};
  Router router(backend_, side_work_, {});
  for (const auto& [fields, words] : requests) {
    RecordingWriter writer;
    router.Handle(
        Post("/v1/messages",
             absl::StrCat(
                 R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],)",
                 fields, "}")),
        writer);
    ASSERT_TRUE(writer.response.has_value()) << fields;
    EXPECT_EQ(writer.response->status, 400);
    EXPECT_THAT(writer.response->body, HasSubstr(words));
  }
}

// The policy of the request decides whether its answer is called lossy.
TEST_F(RouterTest, APolicyOfTheHeaderReachesTheBackendAndItsWordTheAnswer) {
  backend_.models = std::vector<client::ModelInfo>{
      {.id = "m",
       .sequence_tokens_max = 100,
       .lossy = "of-the-default",
       .policies = {{.name = "lossy", .lossy = "a-word"}, {.name = "exact"}}}};
  Router router(backend_, side_work_, {});
  const std::vector<std::pair<std::string, std::string>> words = {
      {"", "of-the-default"}, {"lossy", "a-word"}, {"exact", ""}, {"unknown", ""}};
  for (const auto& [policy, word] : words) {
    SCOPED_TRACE(policy);
    RecordingWriter writer;
    HttpRequest request = Post("/v1/completions", R"({"model":"m","prompt":"x"})");
    request.policy = policy;
    const auto handler = router.Handle(std::move(request), writer);
    const auto& generation = backend_.generations.back();
    EXPECT_EQ(generation->options.policy, policy);
    generation->Send({.text = "y", .finish_reason = client::FinishReason::kStop});
    generation->Finish(absl::OkStatus());
    ASSERT_TRUE(writer.response.has_value());
    const HttpHeaders expected =
        word.empty() ? HttpHeaders() : HttpHeaders{{"x-lamina-lossy", word}};
    EXPECT_EQ(writer.response->headers, expected);
  }
}

TEST_F(RouterTest, APolicyOfTheHeaderHoldsForEveryApi) {
  backend_.models = std::vector<client::ModelInfo>{
      {.id = "m", .sequence_tokens_max = 100, .policies = {{.name = "lossy", .lossy = "a-word"}}}};
  Router router(backend_, side_work_, {});
  const std::pair<std::string, std::string> apis[] = {
      {"/v1/completions", R"("prompt":"x")"},
      {"/v1/chat/completions", R"("messages":[{"role":"user","content":"x"}])"},
      {"/v1/responses", R"("input":"x")"},
      {"/v1/messages", R"("max_tokens":5,"messages":[{"role":"user","content":"x"}])"}};
  const HttpHeaders expected = {{"x-lamina-lossy", "a-word"}};
  for (const auto& [path, fields] : apis) {
    for (const bool stream : {false, true}) {
      SCOPED_TRACE(absl::StrCat(path, stream ? " as a stream" : ""));
      RecordingWriter writer;
      HttpRequest request = Post(path, absl::StrCat(R"({"model":"m",)", fields, R"(,"stream":)",
                                                    stream ? "true}" : "false}"));
      request.policy = "lossy";
      const size_t before = backend_.generations.size();
      const auto handler = router.Handle(std::move(request), writer);
      ASSERT_EQ(backend_.generations.size(), before + 1);
      const auto& generation = backend_.generations.back();
      EXPECT_EQ(generation->options.policy, "lossy");
      generation->Send({.text = "y", .finish_reason = client::FinishReason::kStop});
      generation->Finish(absl::OkStatus());
      if (stream) {
        EXPECT_EQ(writer.stream_headers, expected);
      } else {
        ASSERT_TRUE(writer.response.has_value());
        EXPECT_EQ(writer.response->status, 200);
        EXPECT_EQ(writer.response->headers, expected);
      }
    }
  }
}

TEST_F(RouterTest, AFormOfKvOfTheHeaderReachesTheBackendAndItsWordTheAnswer) {
  backend_.models = std::vector<client::ModelInfo>{
      {.id = "m",
       .sequence_tokens_max = 100,
       .policies = {{.name = "one", .kv = "bf16"},
                    {.name = "one", .lossy = "kv_int8", .kv = "int8"}},
       .policy = "one"}};
  Router router(backend_, side_work_, {});
  const std::vector<std::pair<std::string, std::string>> words = {
      {"", ""}, {"bf16", ""}, {"int8", "kv_int8"}, {"unknown", ""}};
  for (const auto& [kv, word] : words) {
    SCOPED_TRACE(kv);
    RecordingWriter writer;
    HttpRequest request = Post("/v1/completions", R"({"model":"m","prompt":"x"})");
    request.kv = kv;
    const auto handler = router.Handle(std::move(request), writer);
    const auto& generation = backend_.generations.back();
    EXPECT_EQ(generation->options.kv, kv);
    generation->Send({.text = "y", .finish_reason = client::FinishReason::kStop});
    generation->Finish(absl::OkStatus());
    ASSERT_TRUE(writer.response.has_value());
    const HttpHeaders expected =
        word.empty() ? HttpHeaders() : HttpHeaders{{"x-lamina-lossy", word}};
    EXPECT_EQ(writer.response->headers, expected);
  }
}

// A completion, or what else, of so many bytes that they are read off the gateway's thread.
std::string Large(const std::string& fields) {
  return absl::StrCat("{", fields, std::string(SideWork::kSmallBytesMax, ' '), "}");
}

TEST_F(RouterTest, LargeBodiesAreReadOffTheThreadThatServesOthers) {
  Router router(backend_, side_work_, {});
  RecordingWriter large;
  RecordingWriter bad;
  OccupiedSideWork occupied(side_work_, posted_);
  router.Handle(Post("/tokenize", Large(R"("prompt":"x")")), large);
  router.Handle(Post("/v1/completions", Large(R"("model":"m")")), bad);
  const auto handler =
      router.Handle(Post("/v1/completions", Large(R"("model":"m","prompt":"x")")), writer_);

  // Others go on while all threads that read are busy.
  RecordingWriter small;
  router.Handle(Post("/tokenize", R"({"prompt":"x"})"), small);
  EXPECT_EQ(small.response->status, 200);
  EXPECT_FALSE(large.response.has_value());
  EXPECT_TRUE(backend_.generations.empty());

  occupied.Release();
  posted_.RunUntil([&] {
    return large.response.has_value() && bad.response.has_value() && !backend_.generations.empty();
  });
  EXPECT_EQ(large.response->status, 200);
  EXPECT_EQ(bad.response->status, 400);
  handler->OnGone();
}

TEST_F(RouterTest, ALargeRequestIsFitToTheModelOffTheThreadThatServesOthers) {
  Router router(backend_, side_work_, {});
  const auto handler =
      router.Handle(Post("/v1/completions", Large(R"("model":"m","prompt":"x")")), writer_);
  int looks = 0;
  posted_.RunUntil([&] { return looks++ == 1; });  // The body is read, and nothing else was run.
  EXPECT_TRUE(backend_.generations.empty());

  posted_.RunUntil([&] { return !backend_.generations.empty(); });
  EXPECT_FALSE(writer_.response.has_value());
  handler->OnGone();
}

TEST_F(RouterTest, ALargeBodyOfAClientThatIsGoneGoesNowhere) {
  Router router(backend_, side_work_, {});
  OccupiedSideWork occupied(side_work_, posted_);
  const auto handler =
      router.Handle(Post("/v1/completions", Large(R"("model":"m","prompt":"x")")), writer_);
  handler->OnGone();
  RecordingWriter next;
  router.Handle(Post("/tokenize", Large(R"("prompt":"x")")), next);

  occupied.Release();
  posted_.RunUntil([&] { return next.response.has_value(); });

  EXPECT_TRUE(backend_.generations.empty());
  EXPECT_FALSE(writer_.response.has_value());
}

TEST_F(RouterTest, TooManyLargeBodiesAreToldToComeAgain) {
  Router router(backend_, side_work_, {});
  OccupiedSideWork occupied(side_work_, posted_);
  std::vector<RecordingWriter> writers(SideWork::kWaitingMax);
  for (RecordingWriter& writer : writers) {
    router.Handle(Post("/tokenize", Large(R"("prompt":"x")")), writer);
    EXPECT_FALSE(writer.response.has_value());
  }
  for (const char* path : {"/tokenize", "/detokenize", "/v1/completions"}) {
    router.Handle(Post(path, Large(R"("prompt":"x")")), writer_);
    EXPECT_EQ(writer_.response->status, 429) << path;
    EXPECT_THAT(writer_.response->headers, Contains(Key("Retry-After")));
  }

  occupied.Release();
  posted_.RunUntil([&] { return writers.back().response.has_value(); });
  EXPECT_EQ(writers.front().response->status, 200);
}

TEST_F(RouterTest, LargeAnswersAreWrittenOffTheThreadThatServesOthers) {
  Router router(backend_, side_work_, {});
  backend_.tokens.tokens.assign(SideWork::kSmallBytesMax, 7);
  OccupiedSideWork occupied(side_work_, posted_);
  router.Handle(Post("/tokenize", R"({"prompt":"x"})"), writer_);
  EXPECT_FALSE(writer_.response.has_value());

  occupied.Release();
  posted_.RunUntil([&] { return writer_.response.has_value(); });

  EXPECT_THAT(writer_.response->body, HasSubstr(R"("count":16384)"));
}

TEST_F(RouterTest, TheDescriptionNamesEveryEndpoint) {
  const Json description = Json::parse(StaticFile("openapi.json"));
  Router router(backend_, side_work_, {});
  for (const auto& [path, operations] : description["paths"].items()) {
    const std::string method = operations.contains("get") ? "GET" : "POST";
    const std::string real = path == "/v1/models/{model}" ? "/v1/models/x" : path;
    EXPECT_EQ(StatusOf(router.Refuse(
                  {.method = method, .path = real, .content_type = "application/json"})),
              0)
        << path;
  }
  EXPECT_TRUE(StaticFile("nothing").empty());
}

}  // namespace
}  // namespace lamina::gateway
