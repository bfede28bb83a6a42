// SPDX-License-Identifier: Apache-2.0
//
// How deeply a JSON text is nested, told without parsing it: what takes a parsed text apart (copies
// it, walks over it) recurses, so texts of strangers are measured before they are parsed.

#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace lamina {

// Nobody nests deeper.
inline constexpr size_t kJsonDepthMax = 64;

// The most arrays and objects within each other. Exact for JSON; for other texts never less than a
// parser opens before it fails.
// Empty: 0. Cost: one pass.
size_t JsonDepth(absl::string_view text);

}  // namespace lamina
