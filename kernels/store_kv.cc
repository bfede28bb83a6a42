// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "common/check.h"
#include "kernels/attention.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels {
namespace {

// Copies one KV head of `tokens` rows, `stride` apart, to consecutive slots.
void CopyHead(const BFloat16* from, size_t stride, uint32_t tokens, size_t head_dim, BFloat16* to) {
  for (uint32_t t = 0; t < tokens; ++t) {
    std::memcpy(to + t * head_dim, from + t * stride, head_dim * sizeof(BFloat16));
  }
}

// Puts one KV head of `tokens` rows, `stride` apart, into the tiles of slots from `slot` on.
void TileHead(const BFloat16* from, size_t stride, uint32_t tokens, size_t slot, size_t head_dim,
              BFloat16* head) {
  for (size_t t = slot; t < slot + tokens; ++t, from += stride) {
    BFloat16* const tile = head + t / kTileSlots * kTileSlots * head_dim;
    BFloat16* const even = tile + PlaceInLine(t % kTileSlots, 0);
    BFloat16* const odd = tile + PlaceInLine(t % kTileSlots, 1);
    for (size_t pair = 0; pair < head_dim / 2; ++pair) {
      const size_t line = PlaceOfPair(pair, head_dim) * kTileLine;
      even[line] = from[2 * pair];
      odd[line] = from[2 * pair + 1];
    }
  }
}

}  // namespace

void StoreKv(const AttentionDescriptor& descriptor, const BFloat16* k, const BFloat16* v,
             size_t stride, absl::Span<const Extent> extents, BFloat16* arena_k, BFloat16* arena_v,
             size_t head_stride) {
  const size_t head_dim = descriptor.head_dim;
  LAMINA_CHECK(head_dim > 0);
  size_t token = 0;
  for (const Extent& extent : extents) {
    for (size_t g = 0; g < descriptor.kv_heads; ++g) {
      const size_t from = token * stride + g * head_dim;
      const size_t to = g * head_stride + size_t{extent.first_slot} * head_dim;
      LAMINA_CHECK(WholeTiles(size_t{extent.first_slot} + extent.tokens) * head_dim <= head_stride);
      TileHead(k + from, stride, extent.tokens, extent.first_slot, head_dim,
               arena_k + g * head_stride);
      CopyHead(v + from, stride, extent.tokens, head_dim, arena_v + to);
    }
    token += extent.tokens;
  }
}

}  // namespace lamina::kernels
