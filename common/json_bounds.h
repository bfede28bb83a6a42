// SPDX-License-Identifier: Apache-2.0
//
// What a JSON text will cost, told without parsing it: what takes a parsed text apart (copies it,
// walks over it) recurses, a parsed value takes many times its text, and an object that keeps the
// order of its keys looks through all of them for each. So texts of strangers are measured before
// they are parsed.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina {

// Nobody nests deeper.
inline constexpr size_t kJsonDepthMax = 64;

// Exact for JSON; for other texts never less than a parser makes before it fails.
// Empty: one value, nothing else.
struct JsonSize {
  size_t depth = 0;   // The most arrays and objects within each other.
  size_t values = 1;  // Numbers, strings, lists and objects; keys are not counted.
  size_t keys = 0;    // The most of one object.
  // Comparisons of keys that parsing takes where objects are searched from the front: for an object
  // of n keys n (n - 1) / 2. Objects nested deeper than kJsonDepthMax are left out.
  uint64_t comparisons = 0;
};

// Cost: one pass.
JsonSize MeasureJson(absl::string_view text);

// The most keys in one object of a request. Known requests have some hundred.
inline constexpr size_t kRequestKeysMax = 4096;
// They take some 50 ms.
inline constexpr uint64_t kRequestComparisonsMax = 16 << 20;

// Whether a text of a request may be parsed. `what` names it, for the error: "the body".
// Errors: kInvalidArgument  nested deeper than kJsonDepthMax, or too many keys; says which.
absl::Status CheckRequestJson(absl::string_view text, absl::string_view what);

}  // namespace lamina
