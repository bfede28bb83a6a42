// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 as tokenizers need it: one character at a time, invalid bytes by the rule of Unicode 3.9
// ("maximal subparts"), which is also Python's decode(errors="replace").
//
// Threading: free functions without state.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace lamina::model {

inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD.

enum class Utf8State : uint8_t {
  kCharacter,   // A whole character.
  kInvalid,     // Bytes that can never become one: replace all `length` of them by one U+FFFD.
  kIncomplete,  // The text ends inside what may still become one.
};

struct Utf8Step {
  Utf8State state = Utf8State::kInvalid;
  size_t length = 0;       // Bytes taken, at least 1.
  uint32_t codepoint = 0;  // For kCharacter.
};

// Reads the first character of `text`, which is not empty.
Utf8Step ReadUtf8(absl::string_view text);

void AppendUtf8(uint32_t codepoint, std::string* out);

// Invalid and incomplete sequences become U+FFFD each.
std::string ToValidUtf8(absl::string_view text);

// Moves all but a trailing incomplete character from `*pending` into the result.
std::string TakeWholeCharacters(std::string* pending);

}  // namespace lamina::model
