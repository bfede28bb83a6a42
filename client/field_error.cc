// SPDX-License-Identifier: Apache-2.0
#include "client/field_error.h"

#include "absl/strings/cord.h"

namespace lamina::client {
namespace {

constexpr char kParam[] = "lamina/param";
constexpr char kCode[] = "lamina/code";

std::string Payload(const absl::Status& status, absl::string_view key) {
  const auto payload = status.GetPayload(key);
  return payload.has_value() ? std::string(*payload) : "";
}

}  // namespace

absl::Status BadField(absl::string_view param, absl::string_view code, absl::string_view message) {
  absl::Status status = absl::InvalidArgumentError(message);
  SetField(status, param);
  SetFieldCode(status, code);
  return status;
}

void SetField(absl::Status& status, absl::string_view param) {
  status.SetPayload(kParam, absl::Cord(param));
}

void SetFieldCode(absl::Status& status, absl::string_view code) {
  status.SetPayload(kCode, absl::Cord(code));
}

std::string FieldOf(const absl::Status& status) { return Payload(status, kParam); }

std::string FieldCodeOf(const absl::Status& status) { return Payload(status, kCode); }

}  // namespace lamina::client
