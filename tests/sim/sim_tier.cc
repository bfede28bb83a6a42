// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/sim_tier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "plan/spill_blocks.h"
#include "tests/sim/sim_nodes.h"

namespace lamina::sim {

void SimTier::Fail(const std::string& what) {
  if (failure_.empty()) {
    failure_ = absl::StrCat("tier: ", what);
  }
}

uint32_t SimTier::BlocksUsed(uint32_t node) const {
  uint32_t blocks = 0;
  for (const auto& [at, spill] : spills_) {
    const bool written = !spill.out || !spill.moves;
    const size_t tokens = written ? spill.contents.size() : spill.places.slots.size();
    const size_t open = written ? spill.open.size() : spill.places.open;
    if (at.second == node) {
      blocks += plan::SpillBlocksOf(static_cast<uint32_t>(tokens)) +
                plan::SpillTailBlocksOf(static_cast<uint32_t>(open));
    }
  }
  return blocks;
}

void SimTier::BeginOut(uint64_t spill, uint32_t node, SimPlaces places,
                       std::vector<SimSlot>& arena) {
  for (const uint32_t slot : places.slots) {
    ++arena[slot].moves;
  }
  const bool fresh = spills_
                         .emplace(std::pair(spill, node),
                                  Spill{.moves = true, .out = true, .places = std::move(places)})
                         .second;
  if (!fresh) {
    Fail(absl::StrCat("spill ", spill, " is written twice"));
  }
  if (BlocksUsed(node) > nodes_[node].spill.blocks) {
    Fail(absl::StrCat("node ", node, " is to keep more than it has room for"));
  }
}

void SimTier::BeginIn(uint64_t spill, uint32_t node, uint32_t skip, SimPlaces places,
                      std::vector<SimSlot>& arena) {
  const auto found = spills_.find({spill, node});
  if (found == spills_.end() || found->second.moves ||
      skip + places.slots.size() > found->second.contents.size() ||
      places.open > found->second.open.size()) {
    return Fail(absl::StrCat("spill ", spill, " is not there to be read"));
  }
  for (const uint32_t slot : places.slots) {
    ++arena[slot].moves;
  }
  found->second.moves = true;
  found->second.out = false;
  found->second.skip = skip;
  found->second.places = std::move(places);
}

void SimTier::Drop(uint64_t spill) {
  // Nothing, where it could not be written.
  for (auto found = spills_.lower_bound({spill, 0});
       found != spills_.end() && found->first.first == spill; found = spills_.erase(found)) {
    if (found->second.moves) {
      return Fail(absl::StrCat("spill ", spill, " is dropped while it moves"));
    }
  }
}

std::vector<uint32_t> SimTier::NodesAt(uint64_t spill) const {
  std::vector<uint32_t> nodes;
  for (auto found = spills_.lower_bound({spill, 0});
       found != spills_.end() && found->first.first == spill; ++found) {
    if (found->second.moves) {
      nodes.push_back(found->first.second);
    }
  }
  return nodes;
}

void SimTier::End(uint64_t id, uint32_t node, bool ok, std::vector<SimSlot>& arena) {
  Spill& spill = spills_.at({id, node});
  spill.moves = false;
  const auto copy = [&](SimSlot& slot, std::vector<SimSlot>& contents, size_t index) {
    if (spill.out) {
      contents.push_back(slot);
    } else if (ok) {
      slot.Store(contents[index]);
    } else {
      slot.history = 0;  // Some of it may have been written.
    }
  };
  for (size_t i = 0; i < spill.places.slots.size(); ++i) {
    SimSlot& slot = arena[spill.places.slots[i]];
    --slot.moves;
    copy(slot, spill.contents, spill.skip + i);
  }
  for (size_t i = 0; i < spill.places.open; ++i) {
    copy((*spill.places.tail)[i], spill.open, i);
  }
  if (spill.out && !ok) {
    spills_.erase(std::pair(id, node));
  }
}

}  // namespace lamina::sim
