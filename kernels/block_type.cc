// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_type.h"

#include <algorithm>
#include <iterator>

namespace lamina::kernels {
namespace {

// In the order of the enumeration.
constexpr BlockTypeInfo kTypes[] = {
    {BlockType::kQ40, "Q4_0", 32, 18},       {BlockType::kQ41, "Q4_1", 32, 20},
    {BlockType::kQ50, "Q5_0", 32, 22},       {BlockType::kQ51, "Q5_1", 32, 24},
    {BlockType::kQ80, "Q8_0", 32, 34},       {BlockType::kIq4Nl, "IQ4_NL", 32, 18},
    {BlockType::kMxfp4, "MXFP4", 32, 17},    {BlockType::kQ2K, "Q2_K", 256, 84},
    {BlockType::kQ3K, "Q3_K", 256, 110},     {BlockType::kQ4K, "Q4_K", 256, 144},
    {BlockType::kQ5K, "Q5_K", 256, 176},     {BlockType::kQ6K, "Q6_K", 256, 210},
    {BlockType::kIq4Xs, "IQ4_XS", 256, 136}, {BlockType::kInt8, "int8", 32, 34},
};

}  // namespace

absl::Span<const BlockTypeInfo> FileBlockTypes() {
  return absl::MakeConstSpan(kTypes).first(std::size(kTypes) - 1);
}

absl::Span<const BlockTypeInfo> BlockTypes() { return kTypes; }

const BlockTypeInfo& InfoOf(BlockType type) { return kTypes[static_cast<size_t>(type)]; }

std::optional<BlockType> FindBlockType(absl::string_view name) {
  const absl::Span<const BlockTypeInfo> types = FileBlockTypes();
  const auto* found = std::find_if(types.begin(), types.end(),
                                   [name](const auto& type) { return type.name == name; });
  return found == types.end() ? std::nullopt : std::optional(found->type);
}

}  // namespace lamina::kernels
