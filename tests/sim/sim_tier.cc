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
  for (const auto& [id, spill] : spills_) {
    const size_t tokens = spill.out && spill.moves ? spill.slots.size() : spill.contents.size();
    blocks += spill.node == node ? plan::SpillBlocksOf(static_cast<uint32_t>(tokens)) : 0;
  }
  return blocks;
}

void SimTier::BeginOut(uint64_t spill, uint32_t node, std::vector<uint32_t> slots,
                       std::vector<SimSlot>& arena) {
  for (const uint32_t slot : slots) {
    ++arena[slot].moves;
  }
  const bool fresh =
      spills_
          .emplace(spill,
                   Spill{.node = node, .moves = true, .out = true, .slots = std::move(slots)})
          .second;
  if (!fresh) {
    Fail(absl::StrCat("spill ", spill, " is written twice"));
  }
  if (BlocksUsed(node) > nodes_[node].spill.blocks) {
    Fail(absl::StrCat("node ", node, " is to keep more than it has room for"));
  }
}

void SimTier::BeginIn(uint64_t spill, uint32_t node, uint32_t skip, std::vector<uint32_t> slots,
                      std::vector<SimSlot>& arena) {
  const auto found = spills_.find(spill);
  if (found == spills_.end() || found->second.moves || found->second.node != node ||
      skip + slots.size() > found->second.contents.size()) {
    return Fail(absl::StrCat("spill ", spill, " is not there to be read"));
  }
  for (const uint32_t slot : slots) {
    ++arena[slot].moves;
  }
  found->second.moves = true;
  found->second.out = false;
  found->second.skip = skip;
  found->second.slots = std::move(slots);
}

void SimTier::Drop(uint64_t spill) {
  const auto found = spills_.find(spill);
  if (found == spills_.end()) {
    return;  // It could not be written.
  }
  if (found->second.moves) {
    return Fail(absl::StrCat("spill ", spill, " is dropped while it moves"));
  }
  spills_.erase(found);
}

void SimTier::End(uint64_t id, bool ok, std::vector<std::vector<SimSlot>>& arenas) {
  Spill& spill = spills_.at(id);
  std::vector<SimSlot>& arena = arenas[spill.node];
  spill.moves = false;
  for (size_t i = 0; i < spill.slots.size(); ++i) {
    SimSlot& slot = arena[spill.slots[i]];
    --slot.moves;
    if (spill.out) {
      spill.contents.push_back(slot);
    } else if (ok) {
      slot.Store(spill.contents[spill.skip + i]);
    } else {
      slot.history = 0;  // Some of it may have been written.
    }
  }
  if (spill.out && !ok) {
    spills_.erase(id);
  }
}

}  // namespace lamina::sim
