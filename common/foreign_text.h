// SPDX-License-Identifier: Apache-2.0
//
// ForeignText: a text that came from another process, made fit for a log, a message or a terminal.

#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace lamina {

// At most `bytes_max` bytes of it, then "... (N bytes)". Line breaks and other control characters
// are written as "\n" and "\x1b". Cost: O(bytes_max).
std::string ForeignText(absl::string_view text, size_t bytes_max = 1000);

}  // namespace lamina
