// SPDX-License-Identifier: Apache-2.0
//
// Bounds on the JSON of model files, checked on the text before anything is built from it: a parsed
// value takes many times the bytes of its text, and what walks over one recurses.
//
// Threading: free functions without state.

#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina::model {

struct JsonTextLimits {
  size_t bytes_max = 0;
  // Numbers, strings, lists and objects. Each takes up to 100 bytes when it is parsed.
  size_t values_max = 0;
};

// config.json and the like. The largest have some thousand values.
inline constexpr JsonTextLimits kSettingsLimits = {.bytes_max = size_t{16} << 20,
                                                   .values_max = size_t{1} << 20};
// tokenizer.json, and the index of a model's weights. The largest known are of 33 MB, with two
// million values.
inline constexpr JsonTextLimits kTableLimits = {.bytes_max = size_t{96} << 20,
                                                .values_max = size_t{8} << 20};

// `name` is the file's, for the error.
// Errors: kInvalidArgument  more bytes or values than the limits, or deeper than kJsonDepthMax.
// Cost: one pass.
absl::Status CheckJsonText(absl::string_view text, absl::string_view name,
                           const JsonTextLimits& limits);

// The text with null for each NaN and Infinity, which Python writes and JSON does not have.
// Cost: one pass.
std::string WithNullForNan(absl::string_view text);

}  // namespace lamina::model
