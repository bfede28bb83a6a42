// SPDX-License-Identifier: Apache-2.0
#include "common/foreign_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace lamina {

std::string ForeignText(absl::string_view text, size_t bytes_max) {
  std::string fit;
  for (const char c : text.substr(0, bytes_max)) {
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
