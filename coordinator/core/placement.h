// SPDX-License-Identifier: Apache-2.0
//
// Placement: on which lane a new sequence runs, and which memory node holds its K and V. A strategy
// over the loads of the moment; to add one, implement this and hand it to
// SchedulerOptions::strategies.
//
// Determinism: same arguments, same answer; ties go to the lower index.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"

namespace lamina::core {

struct LaneLoad {
  uint32_t rows = 0;
  uint64_t context_tokens = 0;
  bool has_room = true;      // For one more row.
  bool open = true;          // Its next step is being planned: a sequence can join it now.
  uint32_t tokens_left = 0;  // What is left of that step's token budget.
};

// A lane's work, in tokens of context; a row is charged like so many of them.
uint64_t WorkOf(const LaneLoad& load);

// The open lane with the least work among those with room; nothing when a lane that is not open has
// so much less that waiting for its next step is better. Lanes take turns and grow when they open,
// so a small difference says nothing: a newcomer that waited for it could wait for ever. With one
// sequence in all it is lane 0.
std::optional<uint32_t> PickLane(const std::vector<LaneLoad>& lanes);

struct NodeLoad {
  uint64_t lane_context_tokens = 0;  // Context of the lane that the sequence will run on.
  double bandwidth = 0;              // Any unit, the same for all.
  bool fits = true;
  uint32_t kept_tokens = 0;  // Tokens of the newcomer whose K and V it has (prefix_cache.h).
  // How many sequences have left since what is kept there, and would be dropped first for the
  // newcomer, was used; kDropsNothing: there is room.
  uint64_t drops_unused_for = kDropsNothing;
  static constexpr uint64_t kDropsNothing = UINT64_MAX;
};

// The node, among those where it fits, with which the longest attention time of the lane over all
// nodes (context over bandwidth) grows least; of equally good ones that which is then done first,
// and then that which drops what has not been used for the longest time.
// Cost: O(nodes).
std::optional<uint32_t> PickMemoryNode(const std::vector<NodeLoad>& nodes, uint32_t tokens);

class Placement {
 public:
  virtual ~Placement() = default;
  virtual absl::string_view name() const = 0;

  // The lane that a newcomer joins, of those that are open and have room; nothing: it waits for the
  // next step of one. `lanes` are those that decode, or with prefill lanes those: `prefill` says.
  virtual std::optional<uint32_t> LaneOfNewcomer(const std::vector<LaneLoad>& lanes,
                                                 bool prefill) = 0;
  // The node of `tokens` tokens of a newcomer: of all, or of a span when sequences are cut.
  // Nothing: it has to wait. Requires of the answer: the node's `fits`.
  virtual std::optional<uint32_t> NodeOfNewcomer(const std::vector<NodeLoad>& nodes,
                                                 uint32_t tokens) = 0;
  // The node of the next span of a running sequence, of so many tokens once it is full. Nothing:
  // the one where it has the most room of its own, which has to make room.
  virtual std::optional<uint32_t> NodeOfNextSpan(const std::vector<NodeLoad>& nodes,
                                                 uint32_t tokens) = 0;
};

// PickLane(), in prefill lanes the one with the most tokens left in its step, and PickMemoryNode();
// but a newcomer goes where K and V of its first tokens are kept, unless the lane's attention there
// would take more than twice as long, or less than half of its tokens are, and room for the others
// drops there what was used twice as lately: beginnings that many have in common spread over nodes.
std::unique_ptr<Placement> MakeLeastAttentionTime();

}  // namespace lamina::core
