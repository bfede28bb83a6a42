// SPDX-License-Identifier: Apache-2.0
//
// What lies in the memory of a simulated node that holds K and V.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "common/sampling_params.h"
#include "coordinator/core/scheduler_options.h"
#include "plan/step_plan.h"
#include "plan/tails.h"

namespace lamina::sim {

// What lies in a slot.
struct SimSlot {
  std::vector<plan::SequenceId> owners;
  TokenId token = -1;
  uint64_t history = 0;        // Hash of that token and those before it: what K and V follow from.
  plan::SequenceId maker = 0;  // That has stored K and V.
  uint32_t moves = 0;          // That read or write it: to the spill tier, or from it.
  bool bare = true;            // No activation lies with K and V.

  // Has its K and V, and stays who has it.
  void Store(const SimSlot& from) {
    token = from.token;
    history = from.history;
    maker = from.maker;
    bare = from.bare;
  }
};

// Where slots are INT8: the open blocks, in tails.
struct SimTails {
  plan::Tails owners{0};
  std::vector<std::vector<SimSlot>> blocks;  // By tail, and by token in the block.
};

struct SimArena {
  std::vector<SimSlot> slots;
  SimTails tails;
};
using SimArenas = std::map<uint64_t, SimArena>;

// Slots of a share, and its tails, with nothing in them.
SimArena MakeArena(const core::SchedulerOptions& options, const core::MemoryNodeShare& share);

// What K and V of the last of the first `count` tokens follow from.
uint64_t HistoryOf(const std::vector<TokenId>& tokens, size_t count);

// Where nodes have two shares each: whether it is the second one, of INT8 or of path hybrid.
bool IsSecondShare(const core::MemoryNodeShare& share);

// Names the memory of a share's slots, of which each of two shares has some of its own; 0: none.
uint64_t MemoryOf(const core::MemoryNodeShare& share);

}  // namespace lamina::sim
