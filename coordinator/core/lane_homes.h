// SPDX-License-Identifier: Apache-2.0
//
// LaneHomes: where K and V of a lane's sequences may be. Most epochs have memory nodes that all
// lanes share: a sequence lives on any of them, and may change lanes. Under policy local each
// replica keeps K and V of its own lanes: there a lane is bound to a node, and a sequence changes
// lanes only between those of its node.
//
// Determinism: pure functions.

#pragma once

#include <algorithm>
#include <cstdint>

namespace lamina::core {

class LaneHomes {
 public:
  // No lane is bound.
  LaneHomes() = default;
  // Lane j is bound to node j mod `nodes`, as PipelineMode::kApart has it. Requires: nodes >= 1.
  static LaneHomes Bound(uint32_t nodes) { return LaneHomes(nodes); }

  bool bound() const { return nodes_ > 0; }
  // Sets of lanes between which no sequence moves, and which one a lane is in: by node, or all in
  // one.
  uint32_t groups() const { return std::max(1u, nodes_); }
  uint32_t GroupOf(uint32_t lane) const { return bound() ? lane % nodes_ : 0; }
  // Whether a sequence of the lane may have its K and V on the node.
  bool MayLive(uint32_t lane, uint32_t node) const { return !bound() || GroupOf(lane) == node; }

 private:
  explicit LaneHomes(uint32_t nodes) : nodes_(nodes) {}

  uint32_t nodes_ = 0;
};

}  // namespace lamina::core
