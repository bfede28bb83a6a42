// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_type.h"

#include <algorithm>

namespace lamina::kernels {
namespace {

// In the order of the enumeration.
constexpr BlockTypeInfo kTypes[] = {
    {BlockType::kQ40, "Q4_0", 32, 18},       {BlockType::kQ41, "Q4_1", 32, 20},
    {BlockType::kQ50, "Q5_0", 32, 22},       {BlockType::kQ51, "Q5_1", 32, 24},
    {BlockType::kQ80, "Q8_0", 32, 34},       {BlockType::kIq4Nl, "IQ4_NL", 32, 18},
    {BlockType::kMxfp4, "MXFP4", 32, 17},    {BlockType::kQ4K, "Q4_K", 256, 144},
    {BlockType::kQ5K, "Q5_K", 256, 176},     {BlockType::kQ6K, "Q6_K", 256, 210},
    {BlockType::kIq4Xs, "IQ4_XS", 256, 136},
};

}  // namespace

absl::Span<const BlockTypeInfo> BlockTypes() { return kTypes; }

const BlockTypeInfo& InfoOf(BlockType type) { return kTypes[static_cast<size_t>(type)]; }

std::optional<BlockType> FindBlockType(absl::string_view name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [name](const auto& type) { return type.name == name; });
  return found == std::end(kTypes) ? std::nullopt : std::optional(found->type);
}

}  // namespace lamina::kernels
