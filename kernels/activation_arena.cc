// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation_arena.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::kernels {

absl::StatusOr<ActivationArena> ActivationArena::Create(uint32_t layers, uint32_t slots,
                                                        uint32_t width) {
  const uint64_t slot_bytes = uint64_t{layers} * width * sizeof(BFloat16);
  if (slots == 0 || slot_bytes == 0 || slot_bytes > (uint64_t{1} << 47) / slots) {
    return absl::InvalidArgumentError(absl::StrCat("an arena of ", slots, " slots of ", slot_bytes,
                                                   " bytes of activations cannot be made"));
  }
  LAMINA_ASSIGN_OR_RETURN(ArenaMemory memory, ArenaMemory::Create(slot_bytes * slots));
  return ActivationArena(std::move(memory), slots, width);
}

absl::Status ActivationArena::Store(uint32_t layer, absl::Span<const ActivationRows> rows) {
  for (const ActivationRows& tokens : rows) {
    const BFloat16* from = tokens.activation;
    for (const Extent& extent : tokens.slots) {
      for (uint32_t i = 0; i < extent.tokens; ++i, from += tokens.stride) {
        std::copy_n(from, width_, At(layer, extent.first_slot + i));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ActivationArena::Load(uint32_t layer, absl::Span<const Extent> extents, uint32_t first,
                                   uint32_t tokens, BFloat16* to) {
  for (const Extent& extent : extents) {
    const uint32_t skipped = std::min(first, extent.tokens);
    const uint32_t taken = std::min(tokens, extent.tokens - skipped);
    std::copy_n(At(layer, extent.first_slot + skipped), size_t{taken} * width_, to);
    to += size_t{taken} * width_;
    first -= skipped;
    tokens -= taken;
  }
  LAMINA_CHECK(tokens == 0);
  return absl::OkStatus();
}

}  // namespace lamina::kernels
