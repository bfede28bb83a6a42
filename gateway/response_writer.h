// SPDX-License-Identifier: Apache-2.0
//
// ResponseWriter: where the answer to one HTTP request goes. A Connection is one; tests have their
// own.
//
// Use: Respond() once, or StartStream(), Write() any number of times, EndStream().
// Threading: the gateway's.

#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace lamina::gateway {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;     // Besides those of every response.
  std::string error_code;  // As in the body, for counting.
};

class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  virtual void Respond(HttpResponse response) = 0;
  // Status 200, the headers of an event stream, and these.
  virtual void StartStream(const HttpHeaders& headers) = 0;
  virtual void Write(absl::string_view bytes) = 0;
  virtual void EndStream() = 0;
  // Bytes that the client has not taken yet; RequestHandler::OnDrained() says when there are none.
  virtual size_t pending_bytes() const = 0;
};

// Something that answers a request over time.
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  // The client has taken everything.
  virtual void OnDrained() = 0;
  // Nothing was written for the keep-alive time.
  virtual void OnSilence() = 0;
  // The client is gone: the writer must not be used any more.
  virtual void OnGone() = 0;
};

}  // namespace lamina::gateway
