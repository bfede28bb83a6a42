// SPDX-License-Identifier: Apache-2.0
//
// FreeRuns: the free slots of one memory node as maximal runs, in three orders: by address, by
// length and by how recently they were freed (last in, first out).
//
// Two runs never touch: what is added next to a run joins it, and the joined run is the most
// recently freed one. Every call costs O(log runs), whatever the number of slots. Decode rows take
// runs slot by slot from their fronts, so that runs are kept by their ends: then a search is all
// that it takes.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "common/extent.h"

namespace lamina::core {

class FreeRuns {
 public:
  // Adds free slots. Requires: none of them is in a run; extent.tokens > 0.
  void Add(Extent extent);

  // Takes a part out of the run that contains it. What is left of the run keeps its age.
  void Remove(Extent extent);
  // Takes at most `tokens` slots from the front of the run that starts exactly at `slot`; the
  // number of them is 0 if none does. Requires: tokens > 0.
  uint32_t TakeFrom(uint32_t slot, uint32_t tokens);

  // The run that starts exactly at `slot`.
  std::optional<Extent> StartingAt(uint32_t slot) const;

  // The longest run with at least `least` slots among the few that lie nearest to `slot`; of two
  // equally long ones the one with the lower address.
  std::optional<Extent> LongestNear(uint32_t slot, uint32_t least) const;

  // The most recently freed run with at least `least` slots, among the last few freed.
  std::optional<Extent> LastFreed(uint32_t least) const;

  // The longest run of all; of two equally long ones the one with the higher address.
  std::optional<Extent> Longest();

  bool empty() const { return by_end_.empty(); }

  struct Run {
    uint32_t tokens = 0;
    uint32_t indexed = 0;  // How long it was when it was put in order by length: no shorter.
    int64_t freed = 0;     // Larger is more recent; unique.
  };
  using Runs = absl::btree_map<uint32_t, Run>;
  const Runs& runs() const { return by_end_; }  // By the slot behind the last one.
  // The run that contains `slot`, or else the next one.
  Runs::const_iterator At(uint32_t slot) const { return by_end_.upper_bound(slot); }
  static Extent ExtentOf(const Runs::value_type& run) {
    return {run.first - run.second.tokens, run.second.tokens};
  }

 private:
  void Insert(Extent extent, int64_t freed);
  void Erase(Runs::iterator run);

  Runs by_end_;
  absl::btree_set<std::pair<uint32_t, uint32_t>> by_tokens_;  // (indexed, end)
  absl::btree_map<int64_t, uint32_t> by_freed_;               // freed -> end
  int64_t last_freed_ = 0;
  int64_t oldest_freed_ = 0;
};

}  // namespace lamina::core
