// SPDX-License-Identifier: Apache-2.0
//
// Types of blocks in which a backend may hold weights: a row is a run of blocks, each of a fixed
// number of elements in a fixed number of bytes. Most are types of GGUF files, whose weights stay
// as they are: the f32 values that model/gguf/dequantize.cc makes of them, rounded to bf16. One is
// made here when weights are loaded (int8_weights.h).

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lamina::kernels {

enum class BlockType : uint8_t {
  kQ40,
  kQ41,
  kQ50,
  kQ51,
  kQ80,
  kIq4Nl,
  kMxfp4,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Xs,
  kInt8,  // No file has it.
};

struct BlockTypeInfo {
  BlockType type = BlockType::kQ80;
  absl::string_view name;  // As GGUF's, "Q4_1", or "int8".
  size_t elements = 0;
  size_t bytes = 0;
};

// Types of files that can stay packed.
absl::Span<const BlockTypeInfo> FileBlockTypes();
// Those, and int8.
absl::Span<const BlockTypeInfo> BlockTypes();

const BlockTypeInfo& InfoOf(BlockType type);

// None for a name that no type of files has that can stay packed.
std::optional<BlockType> FindBlockType(absl::string_view name);

// Rows of one type, each `in_features` elements in whole blocks, wherever they lie. Of int8 a last
// block may have fewer elements, completed by zeros.
struct BlockRows {
  BlockType type = BlockType::kQ80;
  absl::Span<const uint8_t* const> rows;
};

// A table of rows to look up, one after the other.
struct BlockTable {
  BlockType type = BlockType::kQ80;
  const uint8_t* data = nullptr;
  size_t rows = 0;
  size_t width = 0;  // Elements, in whole blocks.
};

}  // namespace lamina::kernels
