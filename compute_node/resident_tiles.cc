// SPDX-License-Identifier: Apache-2.0
#include "compute_node/resident_tiles.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lamina::compute_node {

ResidentTiles::ResidentTiles(uint32_t tiles, uint32_t lanes) : free_(tiles), lanes_(lanes) {
  std::iota(free_.rbegin(), free_.rend(), 0);  // Tile 0 goes first.
}

void ResidentTiles::BeginStep(uint32_t lane, absl::Span<const RowRun> runs) {
  std::vector<RowRun>& rows = lanes_[lane];
  for (const RowRun& run : rows) {  // Some may be in another lane by now.
    const auto found = held_.find(run.sequence);
    if (found != held_.end() && found->second.lane == lane) {
      found->second.lane = kNoLane;
    }
  }
  rows.assign(runs.begin(), runs.end());
  // A chunk of a prompt may be in front of rows of the same sequence.
  std::sort(rows.begin(), rows.end(), [](const RowRun& a, const RowRun& b) {
    return std::pair(a.sequence, a.first_token) < std::pair(b.sequence, b.first_token);
  });
  for (const RowRun& run : rows) {
    held_[run.sequence].lane = lane;
  }
}

bool ResidentTiles::Add(Held& held, uint32_t lane, uint32_t tile) {
  if (free_.empty()) {
    Held* most = &held;
    for (auto& [id, other] : held_) {
      const bool may = other.lane == kNoLane || other.lane == lane;
      // The requester's tile counts as if it had come.
      if (may && other.tiles.size() > most->tiles.size() + (most == &held ? 1 : 0)) {
        most = &other;
      }
    }
    if (most->tiles.empty()) {
      held.gone = tile + 1;
      return false;
    }
    DropOldest(*most);
  }
  if (held.tiles.empty()) {
    held.first = tile;
  }
  held.tiles.push_back(free_.back());
  free_.pop_back();
  return true;
}

void ResidentTiles::DropOldest(Held& held) {
  free_.push_back(held.tiles.front());
  held.tiles.pop_front();
  ++held.first;
  held.gone = std::max(held.gone, held.first);
}

void ResidentTiles::Drop(Held& held) {
  free_.insert(free_.end(), held.tiles.begin(), held.tiles.end());
  held.tiles.clear();
  held.gone = 0;
}

void ResidentTiles::Leave(plan::SequenceId id) {
  if (const auto found = held_.find(id); found != held_.end()) {
    Drop(found->second);
    held_.erase(found);
  }
}

}  // namespace lamina::compute_node
