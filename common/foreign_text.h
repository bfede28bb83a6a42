// SPDX-License-Identifier: Apache-2.0
//
// ForeignText: a text that came from another process, made fit for a log, a message or a terminal.

#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace lamina {

// The beginning of a text in UTF-8 that has at most `bytes_max` bytes and cuts no character. What
// is not UTF-8 is cut at any byte. Cost: O(1).
absl::string_view WholeCharacters(absl::string_view text, size_t bytes_max);

// WholeCharacters() of it, then "... (N bytes)" if that is not all. Line breaks and other control
// characters are written as "\n" and "\x1b". Cost: O(bytes_max).
std::string ForeignText(absl::string_view text, size_t bytes_max = 1000);

}  // namespace lamina
