// SPDX-License-Identifier: Apache-2.0
//
// Tokenizer files write their patterns for Oniguruma (Ruby syntax, Unicode 16). TranslatePattern
// turns one into PCRE2's syntax with the same matches: \s, \d and \w get Oniguruma's sets, and the
// categories L, M, N, P and S get the characters that Unicode added after PCRE2's tables (14).
//
// Threading: free functions without state.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::model {

// Errors: kUnimplemented  a construct that PCRE2 reads differently (nested classes, intersections,
//                         \h, intervals made possessive, (?m)); names it.
absl::StatusOr<std::string> TranslatePattern(absl::string_view pattern);

// `text` as a pattern that matches it literally.
std::string QuotePattern(absl::string_view text);

}  // namespace lamina::model
