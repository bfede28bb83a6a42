// SPDX-License-Identifier: Apache-2.0
//
// Lex: Jinja source to tokens, with white space cut as transformers sets it: trim_blocks and
// lstrip_blocks on, one newline at the end of the source dropped.
//
// Threading: free functions without state.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::jinja {

enum class TokenKind : uint8_t {
  kData,           // Text that is copied to the output.
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kName,
  kString,  // Unescaped.
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
};

// Ends with a kEnd token.
// Errors: kInvalidArgument  longer than kSourceBytesMax, or not Jinja; names the line.
absl::StatusOr<std::vector<Token>> Lex(absl::string_view source);

// An error that names a line of the template.
absl::Status ErrorAt(int line, absl::string_view message);
absl::Status UnsupportedAt(int line, absl::string_view construct);

}  // namespace lamina::jinja
