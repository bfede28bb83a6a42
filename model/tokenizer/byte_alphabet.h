// SPDX-License-Identifier: Apache-2.0
//
// The alphabet of byte-level BPE: one printable character for each of the 256 bytes, so that a
// vocabulary of text can spell any bytes ("Ġ" is the space). Printable Latin-1 stands for itself;
// the other 68 bytes take U+0100 and up, in order.
//
// Source: "Language Models are Unsupervised Multitask Learners" (GPT-2), section 2.2.
// Threading: free functions without state.

#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace lamina::model {

void AppendAsByteCharacters(absl::string_view bytes, std::string* out);

// The bytes that `text` spells; false when it has a character outside the alphabet.
bool FromByteCharacters(absl::string_view text, std::string* bytes);

}  // namespace lamina::model
