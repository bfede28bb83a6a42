// SPDX-License-Identifier: Apache-2.0
//
// SimTier: the spill tiers of the simulated memory nodes. A move has two moments: Begin, when the
// plan is applied, and End, when its bytes are there. Slots are read and written at the end alone,
// so that whoever was given them too early is found out.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/scheduler_options.h"
#include "plan/step_plan.h"

namespace lamina::sim {

struct SimSlot;

// Where the tokens of a move lie.
struct SimPlaces {
  std::vector<uint32_t> slots;
  std::vector<SimSlot>* tail = nullptr;  // Those behind these lie here, in an open block of INT8,
  uint32_t open = 0;                     // and are so many.
};

class SimTier {
 public:
  explicit SimTier(const std::vector<core::MemoryNodeShare>& nodes) : nodes_(nodes) {}

  // Begins a move of a sequence whose tokens have these places of a node, which are touched until
  // the end.
  void BeginOut(uint64_t spill, uint32_t node, SimPlaces places, std::vector<SimSlot>& arena);
  // The first `skip` tokens that were written are passed over.
  void BeginIn(uint64_t spill, uint32_t node, uint32_t skip, SimPlaces places,
               std::vector<SimSlot>& arena);
  // The spill is dropped on all nodes.
  void Drop(uint64_t spill);

  // Where a move of the spill is under way.
  std::vector<uint32_t> NodesAt(uint64_t spill) const;
  // The move that is under way on the node has gone well or not.
  void End(uint64_t spill, uint32_t node, bool ok, std::vector<SimSlot>& arena);

  size_t size() const { return spills_.size(); }
  const std::string& failure() const { return failure_; }

 private:
  struct Spill {
    bool moves = false;
    bool out = false;
    uint32_t skip = 0;
    SimPlaces places;               // The move's.
    std::vector<SimSlot> contents;  // Once written,
    std::vector<SimSlot> open;      // and of the open block.
  };
  void Fail(const std::string& what);
  uint32_t BlocksUsed(uint32_t node) const;

  const std::vector<core::MemoryNodeShare> nodes_;
  std::map<std::pair<uint64_t, uint32_t>, Spill> spills_;  // By number and node.
  std::string failure_;
};

}  // namespace lamina::sim
