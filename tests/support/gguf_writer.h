// SPDX-License-Identifier: Apache-2.0
//
// GgufWriter: makes small GGUF files for tests. Not for real models: everything is in memory.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lamina::test_support {

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  // Metadata, in the order of the calls.
  void AddUint(absl::string_view key, uint32_t value);
  void AddFloat(absl::string_view key, float value);
  void AddBool(absl::string_view key, bool value);
  void AddString(absl::string_view key, absl::string_view value);
  void AddStrings(absl::string_view key, absl::Span<const std::string> values);
  void AddInts(absl::string_view key, absl::Span<const int32_t> values);
  void AddFloats(absl::string_view key, absl::Span<const float> values);
  // A value whose type and bytes the caller wrote: for what the functions above cannot say.
  void AddRaw(absl::string_view key, uint32_t type, absl::string_view bytes);

  // `shape` outermost first; `data` in the encoding of `type` (GgufTensorType::id).
  void AddTensor(absl::string_view name, absl::Span<const uint64_t> shape, uint32_t type,
                 absl::string_view data);
  // Stored as F32 (type 0) or Q8_0 (type 8).
  void AddTensorF32(absl::string_view name, absl::Span<const uint64_t> shape,
                    absl::Span<const float> values);
  void AddTensorQ8_0(absl::string_view name, absl::Span<const uint64_t> shape,
                     absl::Span<const float> values);

  // The whole file, tensors aligned to 32 bytes.
  std::string Finish() const;

 private:
  uint32_t version_;
  uint64_t pairs_ = 0;
  uint64_t tensors_ = 0;
  std::string metadata_;
  std::string tensor_records_;
  std::string data_;
};

}  // namespace lamina::test_support
