// SPDX-License-Identifier: Apache-2.0
#include "model/json_text.h"

#include "absl/strings/str_cat.h"
#include "common/json_depth.h"

namespace lamina::model {
namespace {

// Never less than a parser makes of the text before it fails.
size_t CountValues(absl::string_view text) {
  size_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else {
      values += c == ',' || c == '[' || c == '{' ? 1 : 0;
    }
  }
  return values;
}

absl::Status Beyond(absl::string_view name, absl::string_view has, size_t found, size_t bound) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " ", has, " ", found, "; at most ", bound,
                   " are read. No known model has more: fetch the file again from its publisher"));
}

}  // namespace

absl::Status CheckJsonText(absl::string_view text, absl::string_view name,
                           const JsonTextLimits& limits) {
  if (text.size() > limits.bytes_max) {
    return Beyond(name, "has bytes:", text.size(), limits.bytes_max);
  }
  if (const size_t values = CountValues(text); values > limits.values_max) {
    return Beyond(name, "has values:", values, limits.values_max);
  }
  if (const size_t depth = JsonDepth(text); depth > kJsonDepthMax) {
    return Beyond(name, "nests lists and objects in levels:", depth, kJsonDepthMax);
  }
  return absl::OkStatus();
}

}  // namespace lamina::model
