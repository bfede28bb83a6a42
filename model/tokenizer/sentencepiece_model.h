// SPDX-License-Identifier: Apache-2.0
//
// The two things that we do to SentencePiece model files (protocol buffers, sentencepiece.proto of
// the library): make one from the vocabulary of a GGUF file, and switch the leading space off.
//
// Threading: free functions without state.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lamina::model {

// How pieces spell a space: U+2581.
inline constexpr absl::string_view kSpaceMark = "\xE2\x96\x81";

struct SentencePieceEntry {
  std::string text;
  float score = 0.0f;
  int64_t type = 1;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte: the
                     // numbers of the model file and of GGUF are the same.
};

struct SentencePieceModel {
  std::vector<SentencePieceEntry> entries;
  int32_t bos = -1;
  int32_t eos = -1;
  bool add_space_prefix = true;
  bool remove_extra_whitespaces = false;
};

// The content of a model file of kind BPE (merges by score).
std::string SerializeSentencePieceModel(const SentencePieceModel& model);

// Returns the model without the space that it puts before a text.
std::string WithoutSpacePrefix(absl::string_view serialized);

}  // namespace lamina::model
