// SPDX-License-Identifier: Apache-2.0
//
// DeferredHandler: an answer that comes later: in one piece, or from another handler that takes
// over.
//
// Threading: the gateway's.

#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gateway/response_writer.h"

namespace lamina::gateway {

// The response that says what went wrong, with Retry-After where it helps.
HttpResponse ErrorResponse(const absl::Status& status);

class DeferredHandler final : public RequestHandler {
 public:
  explicit DeferredHandler(ResponseWriter& writer) : writer_(&writer) {}

  // Nothing happens in either when the client is gone.
  void Respond(HttpResponse response);
  void Continue(const std::function<std::shared_ptr<RequestHandler>(ResponseWriter& writer)>& make);

  void OnDrained() override;
  void OnSilence() override;
  void OnGone() override;

 private:
  ResponseWriter* writer_;  // Null when answered, handed on, or gone.
  std::shared_ptr<RequestHandler> next_;
};

}  // namespace lamina::gateway
