// SPDX-License-Identifier: Apache-2.0
//
// OutputForm: what the output of a request must look like.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lamina {

inline constexpr size_t kOutputFormBytesMax = 64 * 1024;
// Depth of nested brackets: the time that forms take to compile grows faster than it.
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

}  // namespace lamina
