// SPDX-License-Identifier: Apache-2.0
//
// Tensor types of GGUF files and their dequantisation, bit-equal to the `gguf` Python package
// (gguf.quants.dequantize): the same float32 products and sums in the same order.
//
// A row of a quantised tensor is a run of blocks; a block is a fixed number of elements in a fixed
// number of bytes, little-endian. Block layouts stand above each function in dequantize.cc.
//
// Threading: pure.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::model {

struct GgufTensorType {
  uint32_t id = 0;  // As the file stores it.
  absl::string_view name;
  uint32_t block_elements = 0;
  uint32_t block_bytes = 0;
  // Dequantises one block: block_bytes at `block` to block_elements at `out`. `block` may have any
  // alignment.
  void (*dequantize)(const uint8_t* block, float* out) = nullptr;
};

// Errors: kUnimplemented  a type we do not read: names it and lists those that we do.
absl::StatusOr<const GgufTensorType*> FindGgufTensorType(uint32_t id);

// Finds a type by its name, for writers of test files. nullptr when there is none.
const GgufTensorType* FindGgufTensorType(absl::string_view name);

// "F32, F16, ...": for messages.
std::string KnownGgufTensorTypes();

}  // namespace lamina::model
