// SPDX-License-Identifier: Apache-2.0
//
// Normalizer: the text-to-text steps that run before a tokenizer cuts its input, as tokenizer.json
// lists them. No steps: the identity.
//
// Threading: immutable after building; const calls from any thread.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/regex.h"

namespace lamina::model {

enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Bytes of which any form makes one, at most. A character of a form's result is one, or a composite
// of up to three (of two bytes) or four (of three bytes) that stand for a code point of up to four
// bytes each.
inline constexpr size_t kUnicodeShrinkMax = 6;

// Takes and returns valid UTF-8. Cost: O(n log n), also on long runs of combining marks.
std::string NormalizeUnicode(absl::string_view text, UnicodeForm form);

struct PrependStep {
  std::string prefix;  // Put before every text that is not empty.
};
struct ReplaceStep {
  Regex pattern;
  std::string replacement;
  // Length of a pattern that is a plain text; 0: matches are of any length.
  size_t literal_bytes = 0;
};
using NormalizerStep = std::variant<UnicodeForm, PrependStep, ReplaceStep>;

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  // Takes valid UTF-8 and returns valid UTF-8.
  // Errors: of Regex::Cut, and of CheckGrowth: the text may not grow without end.
  absl::StatusOr<std::string> Apply(absl::string_view text) const;

  bool is_identity() const { return steps_.empty(); }
  // The most bytes of a text of which Apply() makes one; 0 where there is no bound.
  size_t shrink_max() const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace lamina::model
