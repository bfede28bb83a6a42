// SPDX-License-Identifier: Apache-2.0
//
// Slots of path hybrid (slot_kinds.h) on a memory node: all that it has, or where other paths have
// slots next to them EpochConfig::hybrid_slots. These are numbered by themselves; in the arena of K
// and V they lie behind those of the others
// (docs/adr/0257-slots-of-two-kinds-next-to-others.md).
//
// Threading: plain values, pure functions.

#pragma once

#include <cstdint>

#include "plan/attention_paths.h"
#include "plan/epoch_config.h"
#include "plan/slot_kinds.h"

namespace lamina::plan {

// How many slots of the memory node only K and V of other paths are in, ahead of those of path
// hybrid. 0: one of them has all.
inline uint32_t SlotsOfOthers(const EpochConfig& config, uint32_t node) {
  return config.hybrid_slots.empty() ? 0 : config.slots[node];
}

// What the slots of the path's sequences hold on the memory node, and where they lie.
inline SlotKinds KindsOf(const EpochConfig& config, AttentionPath path, uint32_t node) {
  return path == AttentionPath::kHybrid
             ? SlotKinds(config.activation_share, SlotsOfOthers(config, node))
             : SlotKinds();
}

}  // namespace lamina::plan
