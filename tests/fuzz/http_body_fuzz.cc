// SPDX-License-Identifier: Apache-2.0
//
// Any body of a completion, a chat, or a request for tokens: taken within the limits, or refused by
// a well-formed error.
#include <string>

#include "common/check.h"
#include "gateway/api_error.h"
#include "gateway/completion_request.h"
#include "tests/fuzz/fuzz_target.h"

namespace lamina::gateway {
namespace {

void CheckRefusal(const absl::Status& status) {
  const ApiError error = ToApiError(status);
  LAMINA_CHECK(error.http_status == 400);
  LAMINA_CHECK(!error.message.empty());
  LAMINA_CHECK(Json::accept(error.ToJson()));
}

void CheckRequest(const absl::StatusOr<CompletionRequest>& request) {
  if (!request.ok()) {
    CheckRefusal(request.status());
    return;
  }
  const RequestLimits limits;
  LAMINA_CHECK(!request->prompts.empty());
  LAMINA_CHECK(request->prompts.size() * *request->options.n <= limits.choices_max);
  LAMINA_CHECK(request->options.stop.size() <= 16);
}

}  // namespace
}  // namespace lamina::gateway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lamina::gateway;  // NOLINT
  const std::string body(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<Json> json = ParseBody(body);
  if (!json.ok()) {
    CheckRefusal(json.status());
    return 0;
  }
  CheckRequest(ParseCompletion(*json, {}));
  CheckRequest(ParseChatCompletion(*json, {}));
  return 0;
}
