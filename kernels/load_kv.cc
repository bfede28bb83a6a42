// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "kernels/attention.h"
#include "kernels/k_tiles.h"
#include "kernels/stream_copy.h"

namespace lamina::kernels {
namespace {

// Tokens whose even elements lie next to each other in a line, and whose odd ones do behind them.
constexpr size_t kQuad = 4;
static_assert(PlaceInLine(1, 0) == 1 && PlaceInLine(0, 1) == kQuad &&
              PlaceInLine(kQuad, 0) == 2 * kQuad);

// Whole quads of K that are neighbours on both sides. `lines`: elements of a tile.
template <size_t kQuads>
void MoveQuads(const BFloat16* source, BFloat16* target, size_t lines) {
  for (size_t line = 0; line < lines; line += kTileLine) {
    std::memcpy(target + line, source + line, kQuads * 2 * kQuad * sizeof(BFloat16));
  }
}

// Tokens of one quad.
template <size_t kTokens>
void MoveFew(const BFloat16* source, BFloat16* target, size_t lines) {
  for (size_t line = 0; line < lines; line += kTileLine) {
    std::memcpy(target + line, source + line, kTokens * sizeof(BFloat16));
    std::memcpy(target + line + kQuad, source + line + kQuad, kTokens * sizeof(BFloat16));
  }
}

// As many of `tokens` as are neighbours in a tile, but not all of it, on both sides: whole quads,
// or some of one. No other slot is read or written. Returns how many these are.
size_t MovePart(const BFloat16* from, size_t from_slot, BFloat16* to, size_t to_slot, size_t tokens,
                size_t head_dim) {
  const size_t from_place = from_slot % kTileSlots;
  const size_t to_place = to_slot % kTileSlots;
  const BFloat16* const source =
      from + (from_slot - from_place) * head_dim + PlaceInLine(from_place, 0);
  BFloat16* const target = to + (to_slot - to_place) * head_dim + PlaceInLine(to_place, 0);
  const size_t lines = head_dim / 2 * kTileLine;
  if (from_place % kQuad == 0 && to_place % kQuad == 0 && tokens >= kQuad) {
    const size_t quads = std::min({tokens, kTileSlots - from_place, kTileSlots - to_place}) / kQuad;
    switch (quads) {
      case 1:
        MoveQuads<1>(source, target, lines);
        break;
      case 2:
        MoveQuads<2>(source, target, lines);
        break;
      default:
        MoveQuads<3>(source, target, lines);
        break;
    }
    return quads * kQuad;
  }
  const size_t few = std::min({tokens, kQuad - from_place % kQuad, kQuad - to_place % kQuad});
  switch (few) {
    case 1:
      MoveFew<1>(source, target, lines);
      break;
    case 2:
      MoveFew<2>(source, target, lines);
      break;
    default:
      MoveFew<3>(source, target, lines);
      break;
  }
  return few;
}

// Copies what lies alike on both sides.
using Copy = void (*)(void* to, const void* from, size_t bytes);

// What comes out of an arena is read at once.
void CopyOut(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

// `tokens` slots of K of one head. Whole tiles that lie alike are copied as they are.
void MoveTiles(const BFloat16* from, size_t from_slot, BFloat16* to, size_t to_slot, size_t tokens,
               size_t head_dim, Copy copy) {
  while (tokens > 0) {
    const bool alike = from_slot % kTileSlots == 0 && to_slot % kTileSlots == 0;
    size_t moved = alike ? tokens / kTileSlots * kTileSlots : 0;
    if (moved > 0) {
      copy(to + to_slot * head_dim, from + from_slot * head_dim,
           moved * head_dim * sizeof(BFloat16));
    } else {
      moved = MovePart(from, from_slot, to, to_slot, tokens, head_dim);
    }
    from_slot += moved;
    to_slot += moved;
    tokens -= moved;
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
    MoveTiles(arena_k, slot, k, token, count, head_dim, CopyOut);
    std::memcpy(v + token * head_dim, arena_v + slot * head_dim,
                count * head_dim * sizeof(BFloat16));
  });
}

void UnloadKv(size_t head_dim, const BFloat16* k, const BFloat16* v,
              absl::Span<const Extent> extents, uint32_t first, uint32_t tokens, BFloat16* arena_k,
              BFloat16* arena_v) {
  VisitRuns(extents, first, tokens, [&](size_t token, size_t slot, size_t count) {
    MoveTiles(k, token, arena_k, slot, count, head_dim, StreamCopy);
    StreamCopy(arena_v + slot * head_dim, v + token * head_dim,
               count * head_dim * sizeof(BFloat16));
  });
  EndStreamCopies();
}

}  // namespace lamina::kernels
