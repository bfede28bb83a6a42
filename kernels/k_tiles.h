// SPDX-License-Identifier: Apache-2.0
//
// Where the elements of K lie in a host's arena: in tiles of 16 slots, transposed, so that a vector
// holds one element of many tokens and a score needs no sum across a vector
// (docs/adr/0084-k-in-tiles.md).
//
// Slot s is token s % 16 of tile s / 16, which takes the place of 16 rows. Elements 2j and 2j + 1
// are pair j; a tile has a line of 32 elements for each, and lines follow each other in the order
// in which a score adds them: lane after lane (docs/design/attention_numerics.md). In a line the
// even elements of four tokens precede their odd ones, as one instruction widens them.

#pragma once

#include <algorithm>
#include <cstddef>

namespace lamina::kernels {

inline constexpr size_t kTileSlots = 16;
inline constexpr size_t kTileLine = 2 * kTileSlots;  // Elements: a pair of each token.

// A lane has so many of 16 pairs, that is 32 elements; they stay next to each other.
inline constexpr size_t kLanePairs = 4;

// The place of pair `pair` among a tile's head_dim / 2 pairs.
constexpr size_t PlaceOfPair(size_t pair, size_t head_dim) {
  const size_t lane = pair % 16 / kLanePairs;
  const size_t whole = head_dim / 32;
  // If heads end with 16 elements, these are in the first two lanes.
  const size_t rest = head_dim % 32 == 0 ? 0 : std::min<size_t>(lane, 2);
  return (lane * whole + rest + pair / 16) * kLanePairs + pair % kLanePairs;
}

// Where in its line an element of a token of a tile is.
constexpr size_t PlaceInLine(size_t token, size_t element) {
  constexpr size_t kQuad = 4;
  return token / kQuad * 2 * kQuad + element % 2 * kQuad + token % kQuad;
}

// Elements from the head's slot 0 to element `element` of a slot.
constexpr size_t OffsetInTiles(size_t slot, size_t element, size_t head_dim) {
  return slot / kTileSlots * kTileSlots * head_dim +
         PlaceOfPair(element / 2, head_dim) * kTileLine + PlaceInLine(slot % kTileSlots, element);
}

// Slots that planes are made of: whole tiles.
constexpr size_t WholeTiles(size_t slots) {
  return (slots + kTileSlots - 1) / kTileSlots * kTileSlots;
}

}  // namespace lamina::kernels
