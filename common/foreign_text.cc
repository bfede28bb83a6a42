// SPDX-License-Identifier: Apache-2.0
#include "common/foreign_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace lamina {

absl::string_view WholeCharacters(absl::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) {
    return text;
  }
  const auto goes_on = [text](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  constexpr size_t kBehindTheFirst = 3;  // No character has more.
  size_t end = bytes_max;
  while (end > 0 && bytes_max - end < kBehindTheFirst && goes_on(end)) {
    --end;
  }
  return text.substr(0, goes_on(end) ? bytes_max : end);
}

std::string ForeignText(absl::string_view text, size_t bytes_max) {
  std::string fit;
  for (const char c : WholeCharacters(text, bytes_max)) {
    if (c == '\n') {
      fit += "\\n";
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppend(&fit, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      fit += c;
    }
  }
  if (text.size() > bytes_max) {
    absl::StrAppend(&fit, "... (", text.size(), " bytes)");
  }
  return fit;
}

}  // namespace lamina
