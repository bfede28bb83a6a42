// SPDX-License-Identifier: Apache-2.0
//
// Typed look-ups in JSON that came from a file: a wrong type is a Status that names the place.
//
// Threading: free functions without state.

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/sampling_params.h"
#include "model/json_text.h"

namespace lamina::model {

using Json = nlohmann::json;

// Errors: kDataLoss         not JSON; says where, and that the file should be fetched again.
//         kInvalidArgument  beyond the limits.
absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view path,
                               const JsonTextLimits& limits);

// The member of an object; nullptr when it is missing or null, or `json` is no object.
const Json* Member(const Json& json, const char* key);

// Errors: kInvalidArgument  missing, or of another type; names the key.
absl::StatusOr<std::string> GetString(const Json& json, const char* key);
absl::StatusOr<TokenId> GetTokenId(const Json& json, const char* key);
// `value` itself; `what` names it. Nothing is cut off a number that is too large.
absl::StatusOr<TokenId> AsTokenId(const Json& value, absl::string_view what);
absl::StatusOr<const Json*> GetArray(const Json& json, const char* key);
absl::StatusOr<const Json*> GetObject(const Json& json, const char* key);
// Returns `fallback` when it is missing.
absl::StatusOr<bool> GetBool(const Json& json, const char* key, bool fallback);

}  // namespace lamina::model
