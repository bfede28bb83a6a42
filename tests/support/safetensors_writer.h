// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsWriter: makes small safetensors files for tests.

#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lamina::test_support {

class SafetensorsWriter {
 public:
  // `data` in the encoding of `type` ("F32", "BF16", "I64", ...).
  void AddTensor(absl::string_view name, absl::Span<const uint64_t> shape, absl::string_view type,
                 absl::string_view data);
  void AddTensorF32(absl::string_view name, absl::Span<const uint64_t> shape,
                    absl::Span<const float> values);
  // Rounded to bf16.
  void AddTensorBF16(absl::string_view name, absl::Span<const uint64_t> shape,
                     absl::Span<const float> values);

  // The whole file.
  std::string Finish() const;

 private:
  std::string header_;  // Entries, each with a comma behind it.
  std::string data_;
};

}  // namespace lamina::test_support
