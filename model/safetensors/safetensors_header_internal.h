// SPDX-License-Identifier: Apache-2.0
//
// The header of one safetensors file and the index of many, parsed and checked.
//
//   file   := length:u64 header data         header is JSON of that many bytes, little-endian
//   length header := {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//
// Offsets count from the start of `data`. "__metadata__" holds strings and is no tensor.

#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/weight_source.h"

namespace lamina::model {

struct SafetensorsEntry {
  TensorInfo info;
  uint64_t begin = 0;  // In `data`; stored_bytes long.
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // By offset.
  uint64_t data_start = 0;                // In the file.
};

// Errors: kDataLoss, see SafetensorsSource.
// Memory: that of the entries, and no document of the header.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const uint8_t> file);

struct SafetensorsIndex {
  std::map<std::string, std::string> file_of_tensor;
  std::set<std::string> files;  // Plain names, without folders.
};

// Errors: kDataLoss         not the JSON that model.safetensors.index.json holds, or a file name
// that
//                           leads elsewhere.
//         kInvalidArgument  beyond kTableLimits.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::Span<const uint8_t> json);

}  // namespace lamina::model
