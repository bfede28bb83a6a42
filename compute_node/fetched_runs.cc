// SPDX-License-Identifier: Apache-2.0
#include "compute_node/fetched_runs.h"

#include <cstddef>
#include <utility>

namespace lamina::compute_node {

void FetchedRuns::Clear() {
  rows.clear();
  runs.clear();
  stretches.clear();
  starts.clear();
  resident.clear();
}

void FetchedRuns::Add(const RowRun& run, plan::FetchSplit split, uint32_t start,
                      const plan::ResidentTokens& kept) {
  rows.push_back(run);
  runs.push_back(split.run);
  stretches.push_back(std::move(split.stretches));
  starts.push_back(start);
  resident.push_back(kept);
}

// Tiles are read whole.
void FetchedRuns::AppendExtents(uint32_t run, uint32_t recomputed_slot, uint32_t slot,
                                std::vector<Extent>& extents) const {
  const size_t first = extents.size();
  const auto append = [&](uint32_t from, uint32_t tokens) {
    if (extents.size() > first && extents.back().first_slot + extents.back().tokens == from) {
      extents.back().tokens += tokens;
    } else if (tokens > 0) {
      extents.push_back({.first_slot = from, .tokens = tokens});
    }
  };
  for (const plan::FetchStretch& stretch : stretches[run]) {
    if (stretch.hidden) {  // Slots that are not looked at: tokens keep their numbers.
      append(0, stretch.tokens);
      continue;
    }
    uint32_t& from = stretch.activations || stretch.here ? recomputed_slot : slot;
    append(from, stretch.tokens);
    from += stretch.tokens;
  }
  append(runs[run].all_recomputed() ? recomputed_slot : slot, runs[run].tokens);
}

void FetchedRuns::CollectMade(const plan::FetchPiece& piece, bool here,
                              std::vector<uint32_t>& positions, std::vector<Extent>& slots) const {
  positions.clear();
  slots.clear();
  uint32_t first_slot = 0;
  for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
    uint32_t position = starts[i];
    uint32_t slot = first_slot;
    for (const plan::FetchStretch& stretch : stretches[i]) {
      if (stretch.activations && stretch.here == here) {
        slots.push_back({.first_slot = slot, .tokens = stretch.tokens});
        for (uint32_t token = 0; token < stretch.tokens; ++token) {
          positions.push_back(position + token);
        }
      }
      slot += stretch.activations ? stretch.tokens : 0;
      position += stretch.tokens;
    }
    first_slot += runs[i].filled_slots();
  }
}

}  // namespace lamina::compute_node
