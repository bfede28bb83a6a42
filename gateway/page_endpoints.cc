// SPDX-License-Identifier: Apache-2.0
#include "gateway/page_endpoints.h"

#include "absl/strings/match.h"
#include "client/cli/status_json.h"
#include "gateway/deferred_handler.h"
#include "gateway/static_files.h"

namespace lamina::gateway {
namespace {

constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string TypeOf(absl::string_view name) {
  return absl::EndsWith(name, ".css")  ? "text/css; charset=utf-8"
         : absl::EndsWith(name, ".js") ? "text/javascript; charset=utf-8"
                                       : "text/html; charset=utf-8";
}

}  // namespace

HttpResponse PageFile(const std::string& path) {
  const std::string name = path == "/" ? "index.html" : path.substr(1);
  return {.content_type = TypeOf(name),
          .body = std::string(StaticFile(name)),
          .headers = {{"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}}};
}

std::shared_ptr<RequestHandler> AnswerStatus(Backend& backend, ResponseWriter& writer) {
  const auto handler = std::make_shared<DeferredHandler>(writer);
  backend.GetStatus([handler](const absl::StatusOr<client::ClusterStatus>& status) {
    if (!status.ok()) {
      handler->Respond(ErrorResponse(status.status()));
      return;
    }
    handler->Respond({.body = cli::ToJson(*status).dump(
                          -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)});
  });
  return handler;
}

}  // namespace lamina::gateway
