// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace lamina::gateway {
namespace {

constexpr char kHttpStatus[] = "lamina/http-status";
// A queue empties at the pace of whole answers; a cluster comes back at that of a restart.
constexpr int kRetryFullSeconds = 1;
constexpr int kRetryUnavailableSeconds = 5;

std::string Payload(const absl::Status& status, absl::string_view key) {
  const auto payload = status.GetPayload(key);
  return payload.has_value() ? std::string(*payload) : "";
}

nlohmann::ordered_json OrNull(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

// `text` with `name` for `field` wherever this is quoted, alone or with what lies within it: 'a',
// 'a.b', 'a[0]'.
std::string RenameQuoted(absl::string_view text, absl::string_view field, absl::string_view name) {
  const std::string quoted = absl::StrCat("'", field);
  std::string out;
  size_t from = 0;
  for (size_t at = text.find(quoted); at != absl::string_view::npos; at = text.find(quoted, from)) {
    const size_t end = at + quoted.size();
    const bool is_field = end < text.size() && absl::StrContains("'.[", text[end]);
    absl::StrAppend(&out, text.substr(from, at - from), "'", is_field ? name : field);
    from = end;
  }
  return absl::StrCat(out, text.substr(from));
}

void FillFromCode(absl::StatusCode code, ApiError& error) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
      error.http_status = 400;
      error.type = "invalid_request_error";
      break;
    case absl::StatusCode::kNotFound:
      error.http_status = 404;
      error.type = "invalid_request_error";
      break;
    case absl::StatusCode::kAlreadyExists:
      error.http_status = 409;
      error.type = "invalid_request_error";
      break;
    case absl::StatusCode::kResourceExhausted:
      error.http_status = 429;
      error.type = "requests";
      error.code = "rate_limit_exceeded";
      error.retry_after_seconds = kRetryFullSeconds;
      break;
    case absl::StatusCode::kUnavailable:
      error.http_status = 503;
      error.type = "server_error";
      error.code = "service_unavailable";
      error.retry_after_seconds = kRetryUnavailableSeconds;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      error.http_status = 504;
      error.type = "server_error";
      error.code = "timeout";
      break;
    case absl::StatusCode::kCancelled:
      error.http_status = 499;
      error.type = "server_error";
      error.code = "request_cancelled";
      break;
    default:
      error.http_status = 500;
      error.type = "server_error";
      break;
  }
}

}  // namespace

std::string ApiError::ToJson() const {
  const nlohmann::ordered_json body = {
      {"error",
       {{"message", message}, {"type", type}, {"param", OrNull(param)}, {"code", OrNull(code)}}}};
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

absl::Status HttpError(int http_status, absl::string_view code, absl::string_view message) {
  absl::Status status =
      http_status < 500 ? absl::InvalidArgumentError(message) : absl::InternalError(message);
  status.SetPayload(kHttpStatus, absl::Cord(absl::StrCat(http_status)));
  if (!code.empty()) {
    client::SetFieldCode(status, code);
  }
  return status;
}

absl::Status NameForm(absl::Status status, absl::string_view field) {
  if (!field.empty() && absl::StartsWith(status.message(), "the form of the output")) {
    client::SetField(status, field);
    client::SetFieldCode(status, "invalid_value");
  }
  return status;
}

absl::Status RenameField(const absl::Status& status, absl::string_view field,
                         absl::string_view name) {
  absl::Status renamed(status.code(), RenameQuoted(status.message(), field, name));
  status.ForEachPayload([&renamed](absl::string_view key, const absl::Cord& value) {
    renamed.SetPayload(key, value);
  });
  const std::string within = FieldOf(status).substr(field.size());
  client::SetField(renamed, absl::StrCat(name, within));
  return renamed;
}

absl::Status UnknownModel(absl::string_view model, absl::string_view served) {
  absl::Status status = absl::NotFoundError(
      absl::StrCat("the model '", model, "' is not served here; served: ", served));
  client::SetField(status, "model");
  client::SetFieldCode(status, "model_not_found");
  return status;
}

ApiError ToApiError(const absl::Status& status) {
  ApiError error = {.message = std::string(status.message())};
  FillFromCode(status.code(), error);
  if (const std::string code = client::FieldCodeOf(status); !code.empty()) {
    error.code = code;
  }
  error.param = FieldOf(status);
  // The coordinator counts the prompt's tokens; OpenAI has a code of its own for this.
  if (status.code() == absl::StatusCode::kInvalidArgument &&
      absl::StartsWith(error.message, "the prompt has ") &&
      absl::StrContains(error.message, "limits.sequence_tokens_max")) {
    error.code = "context_length_exceeded";
  }
  if (error.http_status == 400 && error.code.empty() &&
      (absl::StrContains(error.message, "not in the vocabulary") ||
       absl::StartsWith(error.message, "token id "))) {
    error.code = "invalid_value";
  }
  if (error.http_status == 400 && error.param.empty() &&
      absl::StartsWith(error.message, "the form of the output: ")) {
    error.param = "response_format";
    error.code = "invalid_value";
  }
  int http_status = 0;
  if (absl::SimpleAtoi(Payload(status, kHttpStatus), &http_status)) {
    error.http_status = http_status;
  }
  return error;
}

}  // namespace lamina::gateway
