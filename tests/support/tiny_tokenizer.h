// SPDX-License-Identifier: Apache-2.0
//
// A byte-level BPE tokenizer for random models: ids 0-255 are the bytes, 256 begins a text, 257
// ends it, then a few merges of English pairs, then entries that no text produces.

#pragma once

#include <cstdint>
#include <string>

#include "tests/support/gguf_writer.h"

namespace lamina::test_support {

inline constexpr uint32_t kTinyTokenizerBos = 256;
inline constexpr uint32_t kTinyTokenizerEos = 257;
inline constexpr uint32_t kTinyTokenizerSizeMin = 258;

// Requires: size >= kTinyTokenizerSizeMin.
std::string TinyTokenizerJson(uint32_t size);
void AddTinyTokenizer(uint32_t size, GgufWriter& writer);

}  // namespace lamina::test_support
