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

// What a strategy sees of a holder that lives on the full node.
struct Holding {
  SlotHolder holder;
  uint32_t slots = 0;        // What it has on all nodes together.
  uint32_t tokens_left = 0;  // How many tokens it can still grow by.
  bool has_sampled = false;  // Whether preempting it recomputes tokens that clients have seen.
};

// A memory node that has fewer slots, free or coming free, than rows that wait for one.
class FullNode {
 public:
  virtual ~FullNode() = default;

  virtual uint32_t node() const = 0;
  virtual SlotHolder needy() const = 0;  // The one whose row found no slot.
  // How many more slots must come free before every row that waits gets one; at least 1.
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
