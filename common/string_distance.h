// SPDX-License-Identifier: Apache-2.0
//
// "Did you mean": the nearest of some known names, for messages about unknown keys and flags.

#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lamina {

// Returns the element of `known` with the smallest edit distance to `name` (first of equals), or an
// empty string when none is within a third of its length (at least 2).
std::string NearestName(absl::string_view name, absl::Span<const std::string> known);

}  // namespace lamina
