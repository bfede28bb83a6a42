// SPDX-License-Identifier: Apache-2.0
//
// RowSlots: the slot of each decode row, and what happens when a memory node has none.
//
// Why rows that get no slot cannot wait for each other for ever: on every memory node, slots go to
// starving rows in service order before anybody else gets one (Allocate, and Admission for
// newcomers), and as long as too few slots are on their way for all of them, somebody gives up its
// own (OutOfSlots), never the first in service order. So the first always gets its slot, at the
// latest when it is alone; and Submit let it in only because it fits alone.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <memory>

#include "coordinator/core/lanes.h"
#include "coordinator/core/node_residents.h"
#include "coordinator/core/out_of_slots.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/sequence_kv.h"
#include "coordinator/core/sequence_life.h"
#include "plan/step_plan.h"

namespace lamina::core {

class RowSlots {
 public:
  RowSlots(const SchedulerOptions& options, SequenceLife& life, const SequenceLife::Places& places,
           Placement& placement, std::unique_ptr<OutOfSlots> out_of_slots);

  // Allocates the slot of the next row in `plan`; false when the row has to sit out. Others, or the
  // sequence itself, may have been preempted then.
  bool Allocate(Sequence& sequence, plan::StepPlan& plan);

  // Allocates slots for the tokens of a prompt up to `end` that have none yet, as far as there are.
  // Returns how many of its tokens have had slots then, at most `end`; 0 if it has been preempted.
  uint32_t AllocatePrompt(Sequence& sequence, uint32_t end, plan::StepPlan& plan);

  // Has a sequence give up the slots of tokens that no row of this step or a later one reaches,
  // and leave the prefix cache with them. Requires: every layer has a window.
  void ReleaseBehindWindow(Sequence& sequence, plan::StepPlan& plan);

 private:
  void AddAllocation(Sequence& sequence, const HeldExtent& held, plan::StepPlan& plan);
  // Where the next span of a running sequence goes; a node with room, if there is one.
  uint32_t PickNextNode(const Sequence& sequence) const;
  void MakeRoom(Sequence& sequence);

  const SchedulerOptions& options_;
  SequenceLife& life_;
  SequenceLife::Places places_;
  Placement& placement_;
  std::unique_ptr<OutOfSlots> out_of_slots_;
};

}  // namespace lamina::core
