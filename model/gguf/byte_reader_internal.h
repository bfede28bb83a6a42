// SPDX-License-Identifier: Apache-2.0
//
// ByteReader: takes little-endian numbers and strings off the front of a GGUF file. Every read is
// checked against what is left; the error names what was read and where.

#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lamina::model {

// The remedy is the same for all damage: we cannot know which bytes are wrong.
inline absl::Status DamagedGguf(absl::string_view what, uint64_t offset) {
  return absl::DataLossError(absl::StrCat("damaged GGUF file: ", what, " at byte ", offset,
                                          "; fetch the file again and compare its size"));
}

class ByteReader {
 public:
  explicit ByteReader(absl::Span<const uint8_t> bytes) : bytes_(bytes) {}

  uint64_t offset() const { return offset_; }
  uint64_t left() const { return bytes_.size() - offset_; }

  template <typename T>
  absl::StatusOr<T> Number(absl::string_view what) {
    if (left() < sizeof(T)) {
      return DamagedGguf(absl::StrCat("the file ends inside ", what), offset_);
    }
    T value;
    std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return value;
  }

  // A length (u64) and that many bytes, not copied.
  absl::StatusOr<absl::string_view> String(absl::string_view what) {
    const uint64_t start = offset_;
    absl::StatusOr<uint64_t> length = Number<uint64_t>(what);
    if (!length.ok()) {
      return length.status();
    }
    if (*length > left()) {
      return DamagedGguf(absl::StrCat(what, " claims ", *length, " bytes of ", left(), " left"),
                         start);
    }
    const auto* data = reinterpret_cast<const char*>(bytes_.data() + offset_);
    offset_ += *length;
    return absl::string_view(data, static_cast<size_t>(*length));
  }

 private:
  absl::Span<const uint8_t> bytes_;
  uint64_t offset_ = 0;  // Invariant: <= bytes_.size().
};

}  // namespace lamina::model
