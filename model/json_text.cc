// SPDX-License-Identifier: Apache-2.0
#include "model/json_text.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/json_bounds.h"

namespace lamina::model {
namespace {

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
  const JsonSize size = MeasureJson(text);
  if (size.values > limits.values_max) {
    return Beyond(name, "has values:", size.values, limits.values_max);
  }
  if (size.depth > kJsonDepthMax) {
    return Beyond(name, "nests lists and objects in levels:", size.depth, kJsonDepthMax);
  }
  return absl::OkStatus();
}

std::string WithNullForNan(absl::string_view text) {
  constexpr absl::string_view kWords[] = {"NaN", "-Infinity", "Infinity"};
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  while (!text.empty()) {
    const auto* const word =
        in_string ? std::end(kWords)
                  : std::find_if(std::begin(kWords), std::end(kWords),
                                 [text](absl::string_view w) { return absl::StartsWith(text, w); });
    if (word != std::end(kWords)) {
      out += "null";
      text.remove_prefix(word->size());
      continue;
    }
    const bool escape = in_string && text[0] == '\\';
    in_string = in_string != (text[0] == '"');
    const size_t taken = std::min<size_t>(escape ? 2 : 1, text.size());
    out.append(text.data(), taken);
    text.remove_prefix(taken);
  }
  return out;
}

}  // namespace lamina::model
