// SPDX-License-Identifier: Apache-2.0
//
// Writes the header by hand: names in tests need no escaping.

#include "tests/support/safetensors_writer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"

namespace lamina::test_support {

void SafetensorsWriter::AddTensor(absl::string_view name, absl::Span<const uint64_t> shape,
                                  absl::string_view type, absl::string_view data) {
  absl::StrAppend(&header_, "\"", name, "\":{\"dtype\":\"", type, "\",\"shape\":[",
                  absl::StrJoin(shape, ","), "],\"data_offsets\":[", data_.size(), ",",
                  data_.size() + data.size(), "]},");
  data_.append(data.data(), data.size());
}

void SafetensorsWriter::AddTensorF32(absl::string_view name, absl::Span<const uint64_t> shape,
                                     absl::Span<const float> values) {
  AddTensor(name, shape, "F32",
            {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

void SafetensorsWriter::AddTensorBF16(absl::string_view name, absl::Span<const uint64_t> shape,
                                      absl::Span<const float> values) {
  std::string data;
  for (const float value : values) {
    const BFloat16 rounded = ToBFloat16(value);
    data.append(reinterpret_cast<const char*>(&rounded.bits), sizeof(rounded.bits));
  }
  AddTensor(name, shape, "BF16", data);
}

std::string SafetensorsWriter::Finish() const {
  std::string header = absl::StrCat("{", header_, "\"__metadata__\":{\"format\":\"pt\"}}");
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file + header + data_;
}

}  // namespace lamina::test_support
