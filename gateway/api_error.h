// SPDX-License-Identifier: Apache-2.0
//
// ApiError: a failure as an OpenAI client sees it: an HTTP status and a body
// {"error": {"message", "type", "param", "code"}}.
//
// Inside the gateway failures travel as absl::Status; what only HTTP knows (the parameter and the
// code of client/field_error.h, the HTTP status) rides along as payloads.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/field_error.h"

namespace lamina::gateway {

struct ApiError {
  int http_status = 500;
  std::string message;
  std::string type;
  std::string param;            // Empty: null.
  std::string code;             // Empty: null.
  int retry_after_seconds = 0;  // Value of the Retry-After header; 0: none.

  // The response body, one line. Bytes that are not UTF-8 are replaced.
  std::string ToJson() const;
};

// A bad field of a request is HTTP 400.
using client::BadField;
using client::FieldOf;

// Something else that only HTTP knows: `http_status` is kept as given.
absl::Status HttpError(int http_status, absl::string_view code, absl::string_view message);

// An error about the form of the output, with the field of the request that the form comes from.
// All others, and with an empty field all, stay as they are.
absl::Status NameForm(absl::Status status, absl::string_view field);

// An error of `field`, or of what lies within it, with another name for that: in its parameter, and
// in its message where the field is quoted. Requires: FieldOf() begins with `field`.
absl::Status RenameField(const absl::Status& status, absl::string_view field,
                         absl::string_view name);

// The model that was asked for is not served here: HTTP 404.
absl::Status UnknownModel(absl::string_view model, absl::string_view served);

// What a status of ours, or one that came from the coordinator, is over HTTP: a full queue is 429
// with Retry-After, a cluster that does not serve (or drains) is 503, a wrong argument is 400.
ApiError ToApiError(const absl::Status& status);

}  // namespace lamina::gateway
