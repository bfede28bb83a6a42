// SPDX-License-Identifier: Apache-2.0
#include "gateway/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gateway/static_files.h"
#include "tests/unit/gateway/fake_backend.h"

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
  RecordingWriter writer_;
};

TEST_F(RouterTest, RefusesBeforeTheBodyIsRead) {
  Router router(backend_, {});
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/nothing"})), 404);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/v1/models/"})), 404);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/tokenize"})), 405);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "POST", .path = "/tokenize"})), 415);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "OPTIONS", .path = "/tokenize"})), 405);
  EXPECT_EQ(StatusOf(router.Refuse(Post("/tokenize", ""))), 0);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "HEAD", .path = "/health"})), 0);
}

TEST_F(RouterTest, KeysGuardAllButWhatProbesNeed) {
  Router router(backend_, {.keys = ApiKeys({"k"})});
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/v1/models"})), 401);
  EXPECT_EQ(
      StatusOf(router.Refuse({.method = "GET", .path = "/v1/models", .authorization = "Bearer k"})),
      0);
  EXPECT_EQ(StatusOf(router.Refuse({.method = "GET", .path = "/health"})), 0);
}

TEST_F(RouterTest, DrainingRefusesWithAWait) {
  Router router(backend_, {});
  router.Drain();
  const auto refusal = router.Refuse(Post("/v1/completions", "{}"));
  EXPECT_EQ(StatusOf(refusal), 503);
  EXPECT_THAT(refusal->headers, Contains(Key("Retry-After")));
  router.Handle({.method = "GET", .path = "/health"}, writer_);
  EXPECT_EQ(writer_.response->status, 503);
}

TEST_F(RouterTest, CorsIsOffUnlessAnOriginIsNamed) {
  HttpRequest request = {.method = "OPTIONS", .path = "/v1/models", .origin = "https://a"};
  Router closed(backend_, {});
  EXPECT_EQ(StatusOf(closed.Refuse(request)), 405);
  EXPECT_THAT(closed.HeadersFor(request), Not(Contains(Key("Access-Control-Allow-Origin"))));

  Router open(backend_, {.cors_origins = {"https://a"}});
  EXPECT_EQ(StatusOf(open.Refuse(request)), 204);
  EXPECT_THAT(open.HeadersFor(request), Contains(Pair("Access-Control-Allow-Origin", "https://a")));
  HttpRequest other = {.method = "GET", .path = "/v1/models", .origin = "https://b"};
  EXPECT_THAT(open.HeadersFor(other), Not(Contains(Key("Access-Control-Allow-Origin"))));
}

TEST_F(RouterTest, RequestIdsAreKeptUnlessTheyCouldForgeHeaders) {
  Router router(backend_, {});
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
  Router router(backend_, {.model_names = {"short", "org/long"}});
  router.Handle({.method = "GET", .path = "/v1/models/org%2Flong"}, writer_);
  EXPECT_THAT(writer_.response->body, HasSubstr(R"("id":"org/long")"));
  router.Handle({.method = "GET", .path = "/v1/models/m"}, writer_);
  EXPECT_EQ(writer_.response->status, 200);
  router.Handle({.method = "GET", .path = "/v1/models/%zz"}, writer_);
  EXPECT_EQ(writer_.response->status, 404);
}

TEST_F(RouterTest, HealthIsThatOfTheCluster) {
  Router router(backend_, {});
  router.Handle({.method = "GET", .path = "/health"}, writer_);
  EXPECT_EQ(writer_.response->status, 200);
  backend_.status = client::ClusterStatus{.state = "waiting for m0"};
  router.Handle({.method = "GET", .path = "/health"}, writer_);
  EXPECT_EQ(writer_.response->status, 503);
  EXPECT_THAT(writer_.response->body, HasSubstr("waiting for m0"));
}

TEST_F(RouterTest, MetricsHaveRoutesForPathsAndAreThereWhileDraining) {
  Router router(backend_, {.keys = ApiKeys({"k"})});
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

TEST_F(RouterTest, ThePageIsForAllAndTheStatusForThoseWithAKey) {
  Router router(backend_, {.keys = ApiKeys({"k"})});
  for (const auto& [path, type] : {std::pair("/", "text/html"), std::pair("/page.css", "text/css"),
                                   std::pair("/page.js", "text/javascript")}) {
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
  Router router(backend_, {});
  const auto handler =
      router.Handle(Post("/v1/completions", R"({"model":"m","prompt":"x"})"), writer_);
  ASSERT_EQ(backend_.generations.size(), 1u);
  handler->OnGone();
  EXPECT_TRUE(backend_.generations[0]->cancelled);

  backend_.models = absl::UnavailableError("away");
  Router lost(backend_, {});
  lost.Handle(Post("/v1/completions", R"({"model":"m","prompt":"x"})"), writer_);
  EXPECT_EQ(writer_.response->status, 503);
}

TEST_F(RouterTest, TheDescriptionNamesEveryEndpoint) {
  const Json description = Json::parse(StaticFile("openapi.json"));
  Router router(backend_, {});
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
