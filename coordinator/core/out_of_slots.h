// SPDX-License-Identifier: Apache-2.0
//
// OutOfSlots: who gives up its slots when a memory node has too few for the rows that need one. A
// strategy; to add one, implement this and hand it to SchedulerOptions::strategies.
//
// A sequence that gives up its slots is preempted: it leaves at a step border, waits in its old
// place, and is recomputed. Its slots come free once the step that carries its leave is done.
//
// Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/slot_holder.h"

namespace lamina::core {

// One that lives on a memory node.
struct Holding {
  SlotHolder holder;
  uint32_t slots = 0;        // Of it, on all nodes.
  uint32_t tokens_left = 0;  // Until it ends by length.
  bool has_sampled = false;  // Something that was shown is recomputed with it.
};

// A memory node with too few slots.
class FullNode {
 public:
  virtual ~FullNode() = default;

  virtual uint32_t node() const = 0;
  virtual SlotHolder needy() const = 0;  // Whose row found no slot.
  // How many more must be on their way, so that every row that waits for a slot gets one. At least
  // 1.
  virtual uint64_t slots_missing() const = 0;
  // Calls `visit` with those that live on the node, the last in service order first, until it
  // returns false.
  virtual void VisitFromLast(absl::FunctionRef<bool(const Holding&)> visit) const = 0;
};

class OutOfSlots {
 public:
  virtual ~OutOfSlots() = default;
  virtual absl::string_view name() const = 0;

  // Who gives up its slots; called again as long as slots are missing. The first in service order
  // must never be asked to as long as there is another one, or rows can wait for each other for
  // ever; `needy` may be.
  // Requires of the answer: it lives on the node.
  virtual SlotHolder WhoGivesUp(const FullNode& full) = 0;
};

// The last in service order: it has waited least, and whoever came first is never taken out.
std::unique_ptr<OutOfSlots> MakePreemptLast();

}  // namespace lamina::core
