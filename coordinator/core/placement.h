// SPDX-License-Identifier: Apache-2.0
//
// Placement: on which lane a new sequence runs, and which memory node holds its K and V. Pure
// functions over the loads of the moment.
//
// Determinism: same arguments, same answer; ties go to the lower index.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lamina::core {

struct LaneLoad {
  uint32_t rows = 0;
  uint64_t context_tokens = 0;
  bool has_room = true;  // For one more row.
  bool open = true;      // Its next step is being planned: a sequence can join it now.
};

// A lane's work, in tokens of context; a row is charged like so many of them.
uint64_t WorkOf(const LaneLoad& load);

// The open lane with the least work among those with room; nothing when a lane that is not open has
// so much less that waiting for its next step is better. Lanes take turns and grow when they open,
// so a small difference says nothing: a newcomer that waited for it could wait for ever. With one
// sequence in all it is lane 0.
std::optional<uint32_t> PickLane(const std::vector<LaneLoad>& lanes);

struct NodeLoad {
  uint64_t lane_context_tokens = 0;  // Of the lane that the sequence will run on.
  double bandwidth = 0;              // Any unit, the same for all.
  bool fits = true;
};

// The node, among those where it fits, with which the longest attention time of the lane over all
// nodes (context over bandwidth) grows least; of equally good ones that which is then done first.
std::optional<uint32_t> PickMemoryNode(const std::vector<NodeLoad>& nodes, uint32_t tokens);

}  // namespace lamina::core
