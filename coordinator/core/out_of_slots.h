// SPDX-License-Identifier: Apache-2.0
//
// OutOfSlots: who gives up its slots when a memory node has too few for the rows that need one. A
// strategy; to add one, implement this and hand it to SchedulerOptions::strategies.
//
// A sequence that gives up its slots is preempted: it leaves at a step border, waits in its old
// place, and is recomputed; or its K and V go to the spill tier of its memory node, and come back
// when it joins again. Its slots come free once the step that carries its leave is done, and the
// tier has what was in them.
//
// Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/slot_holder.h"
#include "cost/spill_cost.h"

namespace lamina::core {

// What a strategy sees of a holder that lives on the full node.
struct Holding {
  SlotHolder holder;
  uint32_t slots = 0;         // What it has on all nodes together.
  uint32_t tokens_left = 0;   // How many tokens it can still grow by.
  bool has_sampled = false;   // Whether preempting it recomputes tokens that clients have seen.
  uint32_t tokens = 0;        // That would be computed again, those on their way included.
  bool fits_in_tier = false;  // All of its K and V do, now, and could come back.
};

enum class GivesUp : uint8_t { kToRecompute, kToTier };
struct GivingUp {
  SlotHolder who;
  GivesUp how = GivesUp::kToRecompute;
};

// A memory node that has fewer slots, free or coming free, than rows that wait for one.
class FullNode {
 public:
  virtual ~FullNode() = default;

  virtual uint32_t node() const = 0;
  virtual SlotHolder needy() const = 0;  // The one whose row found no slot.
  // How fast its tier is, and prompts are; zeros where it has none.
  virtual cost::SpillRates spill_rates() const { return {}; }
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
  // Requires of the answer: it lives on the node; it fits in the tier if it is to go there.
  virtual GivingUp WhoGivesUp(const FullNode& full) = 0;
};

// The last in service order: it has waited least, and whoever came first is never taken out.
std::unique_ptr<OutOfSlots> MakePreemptLast();

// Takes the same one, which goes to the tier if there is room and that is faster than computing it
// (cost/spill_cost.h).
std::unique_ptr<OutOfSlots> MakeSpillLast();

}  // namespace lamina::core
