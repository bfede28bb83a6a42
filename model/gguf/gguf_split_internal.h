// SPDX-License-Identifier: Apache-2.0
//
// Files in parts, as llama.cpp's gguf-split and converters write them:
//
//   NAME-00001-of-00003.gguf   all metadata; some tensors, or none
//   NAME-00002-of-00003.gguf   tensors
//   NAME-00003-of-00003.gguf   tensors
//
// Each part is a GGUF file of its own. It says which one it is (split.no, from 0), how many there
// are (split.count), and how many tensors all have together (split.tensors.count).

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/gguf/gguf_file.h"

namespace lamina::model {

// What a part says of itself.
struct SplitPlace {
  uint64_t number = 0;
  uint64_t parts = 0;
  uint64_t tensors = 0;
};

struct Split {
  std::string name;  // What the parts' paths begin with.
  uint64_t parts = 1;
  uint64_t tensors = 0;  // All parts hold so many together.

  std::string PathOf(uint64_t number) const;
};

// The split whose first part `file` is, at `path`; one part where it is whole.
// Errors: kInvalidArgument  it is another part, whose error names the first, or has lost its name.
absl::StatusOr<Split> FindSplit(const GgufFile& file, const std::string& path);

// Errors: kDataLoss         the file at `path` is another part than `expected`, or of another
// split.
absl::Status CheckPart(const GgufFile& part, const SplitPlace& expected, absl::string_view path);

}  // namespace lamina::model
