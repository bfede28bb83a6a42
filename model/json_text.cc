// SPDX-License-Identifier: Apache-2.0
#include "model/json_text.h"

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

}  // namespace lamina::model
