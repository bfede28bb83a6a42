// SPDX-License-Identifier: Apache-2.0
//
// Which keywords of a JSON schema the outputs will obey. XGrammar looks at one way to say what a
// value is ($ref, const, enum, anyOf, oneOf, allOf, then type) and at what belongs to it; whatever
// else a schema demands it leaves out. Such schemas are refused, since nobody would notice.
//
// Threading: pure.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace lamina::model {

// Looks at every schema that `schema` reaches. Words that demand nothing (title, description,
// examples, ...) and words that no draft of JSON Schema knows are taken.
// Errors: kInvalidArgument  names the keyword and where it is; or it is too deep.
absl::Status CheckSchemaKeywords(const nlohmann::ordered_json& schema);

// Checks the keywords of each schema in a structural tag.
absl::Status CheckStructuralTagSchemas(const nlohmann::ordered_json& tag);

}  // namespace lamina::model
