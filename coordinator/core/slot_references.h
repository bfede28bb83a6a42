// SPDX-License-Identifier: Apache-2.0
//
// SlotReferences: how many sequences use each slot of one memory node, kept only where it is more
// than one, as runs of equal count. A slot held by one sequence costs nothing here, and slots that
// two use are one run if they were added one behind the other. Which sequences count is the owner's
// choice: the open ones, or also those whose slots are in quarantine.
//
// Cost: every call finds its place once, O(log runs), and then touches the runs that it changes.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "common/extent.h"

namespace lamina::core {

class SlotReferences {
 public:
  // One more sequence uses the extent. Requires: every slot of it is held already.
  void Add(Extent extent);

  // One sequence less uses the extent. Appends the parts that nobody uses any more to `released`.
  void Drop(Extent extent, std::vector<Extent>& released);

  // How many sequences use a held slot.
  uint32_t CountAt(uint32_t slot) const;

 private:
  struct Run {
    uint32_t end = 0;
    uint32_t count = 0;  // >= 2
  };
  using Runs = absl::btree_map<uint32_t, Run>;
  // The first run that begins at the slot or behind it; a run that contains the slot is cut there.
  Runs::iterator BeginAt(uint32_t slot);
  // The run, cut at the slot if it goes on there.
  Runs::iterator EndAt(Runs::iterator run, uint32_t slot);
  // Slots that one sequence uses are used by two. `next` is the first run behind them, and so is
  // what is returned.
  Runs::iterator AddSecond(Runs::iterator next, Extent extent);

  Runs shared_;  // By first slot; runs are disjoint.
};

}  // namespace lamina::core
