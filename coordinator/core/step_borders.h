// SPDX-License-Identifier: Apache-2.0
//
// StepBorders: what comes free once a step is done. A sequence leaves with the next plan of its
// lane; its slots and its scratch are nobody's until every node has done that step, and if it was
// preempted it may join again from then on. So are its places for activations, but for one that
// joins in the same lane: the compute node alone has them, and runs a lane's steps in turn.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/core/lane_homes.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/scratch_space.h"
#include "coordinator/core/sequence.h"
#include "coordinator/core/sequence_kv.h"
#include "plan/prefill_lanes.h"
#include "plan/step_plan.h"

namespace lamina::core {

// What one step sets free.
struct StepBorder {
  std::vector<plan::SequenceLeave> leaves;
  std::vector<plan::SpillOut> spills;
  std::vector<plan::SpillDrop> drops;
  uint64_t ticket = 0;                     // Ticket of SequenceKv; 0 is none.
  std::vector<uint32_t> scratch;           // Offsets in the scratch.
  std::vector<uint32_t> resident;          // Places of activations that stayed.
  std::vector<plan::SequenceId> draining;  // They wait again.
};

class StepBorders {
 public:
  explicit StepBorders(SequenceKv& kv) : kv_(kv) {}

  // Nothing is held. One scratch for all decode lanes, or for those of each node that lanes are
  // bound to, or one for each replica for prompts; and places for so many tokens' activations.
  void Reset(const SchedulerOptions& options, const LaneHomes& homes = {});

  // The offset of so many places in the scratch that the lane's prompts use; nothing: no room.
  std::optional<uint32_t> TakeScratch(uint32_t lane, uint32_t tokens);

  // The first of so many places for activations, of one that joins with the lane's next plan; those
  // first that one gives up whose leave is in that plan, or in one of the lane that is not done:
  // the lane's steps have done with them when they come to the join. Nothing: no room.
  // Requires: tokens > 0, and as many in each call.
  std::optional<uint32_t> TakeResident(uint32_t lane, uint32_t tokens);

  // The lane's next step is being made from here to Seal(). Who leaves meanwhile leaves with it, or
  // with the one behind it if this step has work of it already.
  void Begin(uint32_t lane, uint64_t step) { making_ = Making{lane, step}; }
  // What the step that is being made sets free.
  StepBorder Seal(uint32_t lane);

  // The sequence leaves its lane, and gives up its slots, its scratch and its places.
  void Leave(Sequence& sequence);
  // The sequence gives up the slots of its first tokens with the step that is being made, which has
  // no work of it yet.
  void ReleaseFirst(const Sequence& sequence, uint32_t tokens);
  // What one that has just left has in its slots goes to the spill tier.
  void Spill(const Sequence& sequence, const plan::SpillOut& spill);
  // One that has just left waits again afterwards.
  void WaitAfter(const Sequence& sequence);

  // The step is done everywhere: slots and scratch are free, and places that nobody has taken over.
  void Pass(uint32_t lane, const StepBorder& border);

  // Sequences that have left, and may be in tables of nodes still.
  uint32_t leaving() const { return leaving_; }

  // Whether no leave is to be planned.
  bool empty() const;
  // Whether nobody has scratch or places.
  bool rooms_empty() const;

 private:
  struct Making {
    uint32_t lane = 0;
    uint64_t step = 0;
  };
  struct LaneBorders {
    StepBorder next;   // Goes out with the lane's next plan,
    StepBorder later;  // and with the one behind it.
    // Places in its borders that are sealed and not passed: those that are nobody's,
    std::vector<uint32_t> leaving;
    // and, once for each such border, those that another sequence has taken over.
    std::vector<uint32_t> taken_over;
  };
  uint64_t TicketOf(StepBorder& border);
  StepBorder& BorderOf(const Sequence& sequence);
  ScratchSpace& ScratchOf(uint32_t lane);

  SequenceKv& kv_;
  uint32_t leaving_ = 0;
  uint32_t decode_lanes_ = 0;
  plan::PrefillLanes prefill_;
  LaneHomes homes_;
  std::vector<ScratchSpace> scratch_;
  ScratchSpace resident_{0};
  std::vector<LaneBorders> lanes_;
  std::optional<Making> making_;
  uint64_t tickets_ = 0;
};

}  // namespace lamina::core
