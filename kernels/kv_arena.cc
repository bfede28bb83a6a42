// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_arena.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels {

uint64_t KvArena::SlotBytes(absl::Span<const AttentionDescriptor> layers) {
  uint64_t bytes = 0;
  for (const AttentionDescriptor& layer : layers) {
    bytes += 2 * uint64_t{layer.kv_width()} * sizeof(BFloat16);
  }
  return bytes;
}

absl::StatusOr<KvArena> KvArena::Create(absl::Span<const AttentionDescriptor> layers,
                                        uint32_t slots) {
  const uint64_t slot_bytes = SlotBytes(layers);
  if (slots == 0 || slot_bytes == 0 || slot_bytes > (uint64_t{1} << 47) / slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("a KV arena of ", slots, " slots of ", slot_bytes, " bytes cannot be made"));
  }
  KvArena arena;
  arena.slots_ = slots;
  LAMINA_ASSIGN_OR_RETURN(arena.memory_, ArenaMemory::Create(slot_bytes * WholeTiles(slots)));
  size_t offset = 0;
  for (const AttentionDescriptor& layer : layers) {
    const size_t plane = WholeTiles(slots) * layer.kv_width();
    arena.planes_.push_back(
        {.k = offset, .v = offset + plane, .head_stride = WholeTiles(slots) * layer.head_dim});
    offset += 2 * plane;
  }
  return arena;
}

}  // namespace lamina::kernels
