// SPDX-License-Identifier: Apache-2.0
//
// DataChecksum: a checksum of what a window has behind its header. It is the sum of its elements,
// each mixed with its place, so that the ranges that a window is made of may come in any order.
//
// Threading: plain values.   Cost: some 2 ns an element.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace lamina::plan {

class DataChecksum {
 public:
  // Adds bytes that lie `offset` bytes behind the window's beginning, each byte once.
  // Requires: both are whole elements, of 2 bytes.
  void Add(size_t offset, absl::Span<const std::byte> bytes);

  // Never 0, which in a header says that there is none.
  uint64_t value() const { return sum_ == 0 ? 1 : sum_; }

 private:
  uint64_t sum_ = 0;
};

}  // namespace lamina::plan
