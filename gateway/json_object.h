// SPDX-License-Identifier: Apache-2.0
//
// A request's body as JSON, and the reader of its fields, which the `lamina` command shares
// (client/json_object.h).

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/json_object.h"

namespace lamina::gateway {

using client::ExactInteger;
using client::Json;
using client::JsonObject;
using client::JsonTypeName;
using client::Missing;
using client::WrongType;

// Parses a body. Errors: kInvalidArgument  not JSON (with the place), nested deeper than 64, with
// objects of more than 4096 keys, or not an object.
absl::StatusOr<Json> ParseBody(absl::string_view body);

// Puts a part of a message behind those before it: on a line of its own, as the coordinator and
// vLLM join parts.
void JoinPart(std::string& text, absl::string_view part);

}  // namespace lamina::gateway
