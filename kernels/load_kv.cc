// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "kernels/attention.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels {
namespace {

// One token of K from tile to tile.
void MoveToken(const BFloat16* from, size_t from_slot, BFloat16* to, size_t to_slot,
               size_t head_dim) {
  const BFloat16* const source = from + from_slot / kTileSlots * kTileSlots * head_dim +
                                 PlaceInLine(from_slot % kTileSlots, 0);
  BFloat16* const target =
      to + to_slot / kTileSlots * kTileSlots * head_dim + PlaceInLine(to_slot % kTileSlots, 0);
  constexpr size_t kOdd = PlaceInLine(0, 1) - PlaceInLine(0, 0);
  for (size_t line = 0; line < head_dim / 2 * kTileLine; line += kTileLine) {
    target[line] = source[line];
    target[line + kOdd] = source[line + kOdd];
  }
}

// `tokens` slots of K of one head. Whole tiles that lie alike are copied as they are.
void MoveTiles(const BFloat16* from, size_t from_slot, BFloat16* to, size_t to_slot, size_t tokens,
               size_t head_dim) {
  const size_t end = to_slot + tokens;
  while (to_slot < end) {
    const bool whole = from_slot % kTileSlots == 0 && to_slot % kTileSlots == 0;
    if (const size_t tiles = whole ? (end - to_slot) / kTileSlots : 0; tiles > 0) {
      std::memcpy(to + to_slot * head_dim, from + from_slot * head_dim,
                  tiles * kTileSlots * head_dim * sizeof(BFloat16));
      from_slot += tiles * kTileSlots;
      to_slot += tiles * kTileSlots;
      continue;
    }
    MoveToken(from, from_slot++, to, to_slot++, head_dim);
  }
}

// Calls move(token, slot, tokens) for the parts of tokens [first, first + tokens) that each extent
// has.
template <typename Move>
void VisitRuns(absl::Span<const Extent> extents, uint32_t first, uint32_t tokens, Move move) {
  const uint32_t end = first + tokens;
  uint32_t token = 0;  // First token of the extent.
  for (const Extent& extent : extents) {
    const uint32_t from = std::max(first, token);
    const uint32_t to = std::min(end, token + extent.tokens);
    if (from < to) {
      move(from, extent.first_slot + size_t{from} - token, to - from);
    }
    token += extent.tokens;
  }
  LAMINA_CHECK(end <= token);
}

}  // namespace

void LoadKv(size_t head_dim, const BFloat16* arena_k, const BFloat16* arena_v,
            absl::Span<const Extent> extents, uint32_t first, uint32_t tokens, BFloat16* k,
            BFloat16* v) {
  VisitRuns(extents, first, tokens, [&](size_t token, size_t slot, size_t count) {
    MoveTiles(arena_k, slot, k, token, count, head_dim);
    std::memcpy(v + token * head_dim, arena_v + slot * head_dim,
                count * head_dim * sizeof(BFloat16));
  });
}

void UnloadKv(size_t head_dim, const BFloat16* k, const BFloat16* v,
              absl::Span<const Extent> extents, uint32_t first, uint32_t tokens, BFloat16* arena_k,
              BFloat16* arena_v) {
  VisitRuns(extents, first, tokens, [&](size_t token, size_t slot, size_t count) {
    MoveTiles(k, token, arena_k, slot, count, head_dim);
    std::memcpy(arena_v + slot * head_dim, v + token * head_dim,
                count * head_dim * sizeof(BFloat16));
  });
}

}  // namespace lamina::kernels
