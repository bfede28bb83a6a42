// SPDX-License-Identifier: Apache-2.0
//
// FetchRing: which of the bytes that a lane and memory node have for pieces of K and V
// (fetch_pieces.h) each piece takes. They are cut into kParts parts of one size. A piece takes as
// many as it needs, rounded up to a power of two: the next ones behind the piece before that begin
// at a multiple of their number, from the first part on again behind the last. So large pieces,
// which take half of the parts, have two windows that take turns, and those of a quarter or an
// eighth have four or eight. Both sides add the same pieces in the same order, and nothing of where
// they lie travels.
//
// A piece may be written when those that lay in its parts have been used up. It never takes a part
// of the piece before it, however large both are: the sender is one piece ahead at least, and what
// uses a piece may write into the one behind it (docs/adr/0228-pieces-take-the-room-they-need.md).
//
// Threading: plain values.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace lamina::plan {

class FetchRing {
 public:
  // More pieces than this never wait to be used. Eight are some layers: those that come long before
  // their layer only keep others on the same link waiting.
  static constexpr uint32_t kParts = 8;

  // How many pieces have been added.
  uint64_t pieces() const { return pieces_; }

  // Where the next piece begins, which takes so many parts.
  // Requires, here and below: parts is a power of two, and kParts / 2 at most.
  uint32_t First(uint32_t parts) const { return (end_ + parts - 1) / parts * parts % kParts; }

  // The last piece that lay there, by its number from 1 on: when it has been used up the next one
  // may be written. 0: none did.
  uint64_t Before(uint32_t parts) const {
    const uint32_t first = First(parts);
    return *std::max_element(&last_[first], &last_[first] + parts);
  }

  void Add(uint32_t parts) {
    const uint32_t first = First(parts);
    std::fill_n(&last_[first], parts, ++pieces_);
    end_ = first + parts;
  }

 private:
  uint64_t pieces_ = 0;
  uint32_t end_ = 0;                        // The first part behind the last piece.
  std::array<uint64_t, kParts> last_ = {};  // The last piece that took each part.
};

}  // namespace lamina::plan
