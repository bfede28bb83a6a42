// SPDX-License-Identifier: Apache-2.0
//
// An error about one field of a request's body, with the field's name and OpenAI's code for the
// kind of mistake. Both ride along with a status as payloads, so that the macros of
// common/status_macros.h work.
//
// Threading: free functions without state.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina::client {

// A bad field: kInvalidArgument, with the name of the field and OpenAI's code for the kind of
// mistake ("invalid_type", "invalid_value", "missing_required_parameter", ...).
absl::Status BadField(absl::string_view param, absl::string_view code, absl::string_view message);

// Name the field of an error, and its code, in place of those that it has. Require: not OK.
void SetField(absl::Status& status, absl::string_view param);
void SetFieldCode(absl::Status& status, absl::string_view code);

// The field that an error names, and its code; empty: none.
std::string FieldOf(const absl::Status& status);
std::string FieldCodeOf(const absl::Status& status);

}  // namespace lamina::client
