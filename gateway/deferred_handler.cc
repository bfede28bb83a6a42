// SPDX-License-Identifier: Apache-2.0
#include "gateway/deferred_handler.h"

#include "absl/strings/str_cat.h"
#include "gateway/api_error.h"

namespace lamina::gateway {

HttpResponse ErrorResponse(const absl::Status& status) {
  const ApiError error = ToApiError(status);
  HttpResponse response = {
      .status = error.http_status, .body = error.ToJson(), .error_code = error.code};
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("Retry-After", absl::StrCat(error.retry_after_seconds));
  }
  return response;
}

void DeferredHandler::Respond(HttpResponse response) {
  if (ResponseWriter* writer = std::exchange(writer_, nullptr); writer != nullptr) {
    writer->Respond(std::move(response));
  }
}

void DeferredHandler::Continue(
    const std::function<std::shared_ptr<RequestHandler>(ResponseWriter& writer)>& make) {
  if (ResponseWriter* writer = std::exchange(writer_, nullptr); writer != nullptr) {
    next_ = make(*writer);
  }
}

void DeferredHandler::OnDrained() {
  if (next_ != nullptr) {
    next_->OnDrained();
  }
}

void DeferredHandler::OnSilence() {
  if (next_ != nullptr) {
    next_->OnSilence();
  }
}

void DeferredHandler::OnGone() {
  writer_ = nullptr;
  if (next_ != nullptr) {
    next_->OnGone();
  }
}

}  // namespace lamina::gateway
