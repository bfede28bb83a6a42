// SPDX-License-Identifier: Apache-2.0
#include "plan/resident_room.h"

#include <algorithm>

#include "common/kv_form.h"
#include "plan/fetch_pieces.h"

namespace lamina::plan {
namespace {

// The product saturates: a number of slots has 32 bits.
uint32_t TokensOf(uint64_t groups, uint32_t tokens_each) {
  return static_cast<uint32_t>(std::min<uint64_t>(groups, UINT32_MAX / tokens_each)) * tokens_each;
}

}  // namespace

ResidentRoom ResidentTilesIn(uint64_t bytes, absl::Span<const AttentionDescriptor> layers) {
  const uint64_t tile = kFetchTile * KvSlotBytes(layers, KvForm::kBF16);
  return {.tokens = TokensOf(bytes / tile, kFetchTile), .least = tile};
}

ResidentRoom ResidentBlocksIn(uint64_t bytes, absl::Span<const AttentionDescriptor> layers,
                              uint32_t tails_max) {
  const uint64_t tail = kInt8BlockTokens * KvSlotBytes(layers, KvForm::kBF16);
  const uint64_t block = kInt8BlockTokens * KvSlotBytes(layers, KvForm::kInt8);
  ResidentRoom room{.least = tail + block};
  if (bytes >= room.least) {
    const uint64_t in_half = std::max<uint64_t>(1, bytes / 2 / tail);
    room.tails = static_cast<uint32_t>(std::min<uint64_t>(in_half, tails_max));
    room.tokens = TokensOf((bytes - room.tails * tail) / block, kInt8BlockTokens);
  }
  return room;
}

}  // namespace lamina::plan
