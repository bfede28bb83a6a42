// SPDX-License-Identifier: Apache-2.0
//
// Which keywords of a JSON schema the outputs will obey. XGrammar looks at one way to say what a
// value is ($ref, const, enum, anyOf, oneOf, allOf, then type) and at what belongs to it; whatever
// else a schema demands it leaves out. Such schemas are refused, since nobody would notice.
//
// Strings with a least or a greatest length get a pattern that says the same: by the lengths alone
// XGrammar takes control characters, which JSON has behind a backslash only.
//
// Threading: pure.

#pragma once

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace lamina::model {

// Looks at every schema that `schema` reaches. Words that demand nothing (title, description,
// examples, ...) and words that no draft of JSON Schema knows are taken. True if it got patterns.
// Errors: kInvalidArgument  names the keyword and where it is; or it is too deep.
absl::StatusOr<bool> PrepareSchema(nlohmann::ordered_json& schema);

// Prepares each schema in a structural tag. Those of tags in XML, whose strings are no JSON, and
// those with excluded texts, which no pattern keeps out, get no patterns.
absl::StatusOr<bool> PrepareStructuralTag(nlohmann::ordered_json& tag);

}  // namespace lamina::model
