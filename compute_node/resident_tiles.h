// SPDX-License-Identifier: Apache-2.0
//
// ResidentTiles: which tiles of an arena have the most recent tokens of which sequence
// (recent_tokens.h). A tile is as many consecutive tokens as come and go together.
//
// While there is room every sequence gets the tiles that it asks for. Then the oldest tile of the
// sequence that has most makes room for that of one that has fewer, or the oldest of its own, so
// that sequences of one length end with as many each. Sequences of other lanes' steps, which may
// read theirs, keep them.
//
// Threading: the data thread. Allocation: when sequences get their first tiles.
// Cost: Add() O(sequences) once the arena is full.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "compute_node/step_layout.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

class ResidentTiles {
 public:
  static constexpr uint32_t kNoLane = UINT32_MAX;

  // Tiles of a sequence, which follow each other: the first one has its tokens' tile `first`.
  struct Held {
    uint32_t first = 0;
    std::deque<uint32_t> tiles;
    uint32_t gone = 0;        // Tiles of its tokens before this one made room, or had none.
    uint32_t lane = kNoLane;  // The lane whose step has rows of it.

    uint32_t end() const { return first + static_cast<uint32_t>(tiles.size()); }
    bool Has(uint32_t tile) const { return tile >= first && tile < end(); }
    // Requires: Has(tile).
    uint32_t At(uint32_t tile) const { return tiles[tile - first]; }
  };

  // The arena has so many tiles.
  ResidentTiles(uint32_t tiles, uint32_t lanes);

  // These runs of the lane's step are next; its last one has ended.
  void BeginStep(uint32_t lane, absl::Span<const RowRun> runs);
  // Those runs, by sequence and then by token.
  absl::Span<const RowRun> RunsOf(uint32_t lane) const { return lanes_[lane]; }

  // Requires: the sequence has been in a step.
  Held& Of(plan::SequenceId id) { return held_.at(id); }
  const Held& Of(plan::SequenceId id) const { return held_.at(id); }

  // Gives the sequence a tile for the next tile of its tokens, `tile`, if one can be had in a step
  // of the lane. Requires: it has none, or those up to this one.
  bool Add(Held& held, uint32_t lane, uint32_t tile);
  // Frees all, as if the sequence began here.
  void Drop(Held& held);
  // The sequence is forgotten.
  void Leave(plan::SequenceId id);

 private:
  void DropOldest(Held& held);

  std::vector<uint32_t> free_;
  std::unordered_map<plan::SequenceId, Held> held_;
  std::vector<std::vector<RowRun>> lanes_;  // The runs of each lane's step.
};

}  // namespace lamina::compute_node
