// SPDX-License-Identifier: Apache-2.0
//
// Parse: tokens to a syntax tree, by Jinja's grammar.
//
// Threading: free function without state.

#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/jinja/ast.h"

namespace lamina::jinja {

// Errors: kInvalidArgument  not Jinja, or nested deeper than kNestingMax; names the line.
//         kUnimplemented    Jinja, but a statement, filter or test that we do not know: names it.
absl::StatusOr<Body> Parse(absl::string_view source);

}  // namespace lamina::jinja
