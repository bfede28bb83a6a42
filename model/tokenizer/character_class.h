// SPDX-License-Identifier: Apache-2.0
//
// The two character classes that the flags of added tokens ask about.
//
// Threading: free functions without state.

#pragma once

#include <cstdint>

namespace lamina::model {

// Unicode's White_Space.
bool IsWhiteSpace(uint32_t codepoint);

// Letters, marks, decimal digits, letter-like numbers, connectors and the two joiners.
bool IsWordCharacter(uint32_t codepoint);

}  // namespace lamina::model
