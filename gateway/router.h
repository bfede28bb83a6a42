// SPDX-License-Identifier: Apache-2.0
//
// Router: the gateway's endpoints, who may use them, and what each answers.
//
// Threading: the gateway's.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gateway/api_keys.h"
#include "gateway/backend.h"
#include "gateway/chat_shape.h"
#include "gateway/completion_request.h"
#include "gateway/connection.h"
#include "gateway/deferred_handler.h"
#include "gateway/model_directory.h"
#include "gateway/side_work.h"

namespace lamina::gateway {

struct RouterOptions {
  ApiKeys keys;
  std::vector<std::string> cors_origins;
  std::vector<std::string> model_names;
  ShapeOptions shape;
  RequestLimits limits;
};

class Router final : public RequestRouter {
 public:
  // `backend` and `side_work` must outlive it.
  Router(Backend& backend, SideWork& side_work, RouterOptions options);

  // From now on only requests with these keys are let in.
  void SetKeys(ApiKeys keys) { options_.keys = std::move(keys); }

  // From now on requests are refused with 503.
  void Drain() { draining_ = true; }

  std::optional<HttpResponse> Refuse(const HttpRequest& head) override;
  HttpResponse ErrorOf(const std::string& path, const absl::Status& status) const override;
  std::vector<std::pair<std::string, std::string>> HeadersFor(HttpRequest& head) override;
  std::string RouteOf(const std::string& path) const override;
  GatewayMetrics& metrics() override { return metrics_; }
  std::shared_ptr<RequestHandler> Handle(HttpRequest request, ResponseWriter& writer) override;

 private:
  using Endpoint = std::shared_ptr<RequestHandler> (Router::*)(HttpRequest& request,
                                                               ResponseWriter& writer);
  struct Route {
    std::string method;
    Endpoint endpoint = nullptr;
    bool open = false;    // Needs no key.
    bool always = false;  // Is answered while draining.
  };

  const Route* Find(const std::string& path) const;

  std::shared_ptr<RequestHandler> Health(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> Version(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> OpenApi(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> Metrics(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> Page(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> Status(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> Models(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> Tokenize(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> Detokenize(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> TokenizerInfo(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> Embeddings(HttpRequest& request, ResponseWriter& writer);
  std::shared_ptr<RequestHandler> Completion(HttpRequest& request, ResponseWriter& writer);

  // `bytes`: of the body.
  void Complete(std::shared_ptr<CompletionRequest> request, size_t bytes, const std::string& path,
                const std::shared_ptr<DeferredHandler>& handler);
  void Generate(CompletionRequest request, const client::ModelInfo& model, const std::string& path,
                const std::shared_ptr<DeferredHandler>& handler);
  void CountTokens(const CompletionRequest& request,
                   const std::shared_ptr<DeferredHandler>& handler);

  Backend& backend_;
  SideWork& side_work_;
  RouterOptions options_;
  ModelDirectory models_;
  GatewayMetrics metrics_;
  const int64_t started_;  // Seconds since 1970.
  std::map<std::string, Route> routes_;
  bool draining_ = false;
};

}  // namespace lamina::gateway
