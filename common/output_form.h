// SPDX-License-Identifier: Apache-2.0
//
// OutputForm: what the output of a request must look like.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace lamina {

inline constexpr size_t kOutputFormBytesMax = 64 * 1024;
// Depth of nested brackets that are part of the form, not of its strings and classes: what compiles
// forms recurses, and takes time that grows faster than it.
inline constexpr size_t kOutputFormDepthMax = 64;

struct OutputForm {
  enum class Kind : uint8_t {
    kAny,
    kJsonSchema,     // `text` is a JSON schema.
    kRegex,          // A regular expression that the whole output matches.
    kGrammar,        // A grammar in EBNF, as XGrammar reads it, with the rule "root".
    kStructuralTag,  // JSON, {"format": {...}}, as XGrammar reads it.
  };
  Kind kind = Kind::kAny;
  std::string text;

  bool any() const { return kind == Kind::kAny; }
  friend bool operator==(const OutputForm&, const OutputForm&) = default;
};

// Whether a form may be parsed, in any of its parts. What it says is not looked at. Errors:
// kInvalidArgument  it is larger or deeper than the bounds above, or CheckRequestJson() refuses it.
// Cost: a few passes over the text.
absl::Status CheckOutputForm(const OutputForm& form);

}  // namespace lamina
