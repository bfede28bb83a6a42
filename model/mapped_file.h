// SPDX-License-Identifier: Apache-2.0
//
// MappedFile: a whole file, mapped read-only. Readers of model files parse it in place.
//
// The file must not be cut short while it is mapped: the kernel answers a read behind the new end
// with SIGBUS, which no Status can report. Replace model files by renaming, as downloaders do.
//
// Threading: immutable after Open().

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lamina::model {

class MappedFile {
 public:
  // Errors: kNotFound         no such file.
  //         kInvalidArgument  a directory or a device.
  //         kPermissionDenied, kResourceExhausted, kUnknown  what the system said, with the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Valid while this object lives, wherever it is moved.
  absl::Span<const uint8_t> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  const uint8_t* data_ = nullptr;  // nullptr for an empty file, which cannot be mapped.
  size_t size_ = 0;
};

}  // namespace lamina::model
