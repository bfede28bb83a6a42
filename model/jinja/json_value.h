// SPDX-License-Identifier: Apache-2.0
//
// From JSON to the values of templates.
//
// Threading: free function without state.

#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "model/jinja/value.h"

namespace lamina::jinja {

// The order of members is kept.
// Errors: kInvalidArgument  nested deeper than kNestingMax, or a number that fits no 64 bits.
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json);

}  // namespace lamina::jinja
