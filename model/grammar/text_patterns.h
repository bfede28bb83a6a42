// SPDX-License-Identifier: Apache-2.0
//
// Regular expressions of strings in JSON schemas: what XGrammar cannot take, and what it needs.
//
// Threading: pure.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace lamina::model {

// Whether `regex` repeats a repetition, 'a++' or 'a{2}{3}'. One that is lazy, 'a+?', is none. Of so
// many in a row XGrammar makes a recursion in schemas, and refuses two elsewhere.
bool RepeatsARepetition(absl::string_view regex);

// A regular expression of `least` to `most` characters (nothing: any number) that a string in JSON
// may have without a backslash.
std::string PatternOfLength(uint64_t least, std::optional<uint64_t> most);

}  // namespace lamina::model
