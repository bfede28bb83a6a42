// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/scratch_space.h"

#include "common/check.h"

namespace lamina::core {

std::optional<uint32_t> ScratchSpace::Take(uint32_t tokens) {
  LAMINA_CHECK(tokens > 0);
  uint32_t gap_start = 0;
  for (const auto& [offset, taken] : taken_) {
    if (offset - gap_start >= tokens) {
      break;
    }
    gap_start = (offset + taken + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (gap_start > tokens_ || tokens_ - gap_start < tokens) {
    return std::nullopt;
  }
  taken_.emplace(gap_start, tokens);
  return gap_start;
}

void ScratchSpace::Free(uint32_t offset) { LAMINA_CHECK(taken_.erase(offset) == 1); }

}  // namespace lamina::core
