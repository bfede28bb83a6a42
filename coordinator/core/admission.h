// SPDX-License-Identifier: Apache-2.0
//
// Admission: lets waiting sequences into open steps, in service order, so that nobody waits for
// ever behind smaller ones; when an epoch begins, those first that have lost nothing (ADR 0211). A
// newcomer needs a lane with room for its row, memory nodes with room for its tokens and some more,
// scratch for its prompt, and tokens of a step's budget. Where lanes are bound to nodes
// (lane_homes.h) the two are chosen together.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "coordinator/core/lane_balance.h"
#include "coordinator/core/newcomer_nodes.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/sequence_life.h"
#include "coordinator/core/step_maker.h"

namespace lamina::core {

class Admission {
 public:
  Admission(const SchedulerOptions& options, SequenceLife& life, const SequenceLife::Places& places,
            const LaneBalance& balance, StepMaker& maker, Placement& placement);

  // An epoch has begun. What ran before and finds its K and V joins first: it has a row to compute,
  // and would wait for prompts of those that have lost theirs, which would drop what it finds.
  // Others join once each of these has its next token.
  void BeginEpoch() { survivors_known_ = false; }

  // Lets in as many as there is room for.
  void Admit(OpenSteps& open);

 private:
  enum class Outcome : uint8_t {
    kJoined,
    kWaits,          // For another step.
    kWaitsForMaker,  // For K and V of its first tokens, which another one computes.
    kWaitsForRows,   // For a step of another lane than those of prompts.
    kLacks,          // Room that others have.
  };
  // Where prompts have lanes of their own, others take those alone that find most of theirs.
  enum class NewcomerLanes : uint8_t { kDecode, kPrefill };
  // Lets the sequence in, unless something is missing. It joins where it finds so many tokens.
  Outcome TryJoin(Sequence& sequence, uint32_t found_min, OpenSteps& open);
  Outcome TryJoinIn(NewcomerLanes lanes, Sequence& sequence, uint32_t found_min, OpenSteps& open);
  // The first of those that wait but for these; null: there is none.
  Sequence* FirstOfQueue(const std::vector<const Sequence*>& passed) const;
  // Which of the waiting find nearly all of their tokens.
  void FindSurvivors();
  // The most tokens that one whose node has stayed does not find,
  uint32_t MissingOfSurvivor(const Sequence& sequence) const;
  // and how many it has to find where it joins.
  uint32_t FoundBySurvivor(const Sequence& sequence) const;
  // Whether there is a node where it still finds so many.
  bool IsStillSurvivor(const Sequence& sequence) const;
  bool HasInt8(const Sequence& sequence) const;
  // Lets in those for which nobody has to wait.
  void JoinSurvivors(OpenSteps& open);
  // Whether others have to wait for those that have joined.
  bool AdmitSurvivors(OpenSteps& open);
  // The open lane that a newcomer joins; none when it has to wait for the next step of one.
  std::optional<uint32_t> PickLaneToJoin(NewcomerLanes which, OpenSteps& open,
                                         const Sequence& sequence, uint32_t found_min);
  // Takes the room from lanes whose steps are full of prompts, if there is another one with room.
  void AvoidLongPrompts(std::vector<LaneLoad>& loads) const;
  // Takes the room from lanes whose node has none for the newcomer. If K and V of its first tokens
  // are on the node where placement would have it, from those of all other nodes. Requires: lanes
  // are bound.
  void KeepLanesWithHome(const Sequence& sequence, uint32_t found_min,
                         std::vector<LaneLoad>& lanes);
  // The sequence, which has begun its span `span` on the node, shares what is found there and what
  // is kept of it.
  std::vector<HeldExtent> ShareSpan(Sequence& sequence, uint32_t lane, size_t span, uint32_t node,
                                    const PrefixCache::Found& found);
  // Places for activations that stay, of a sequence that joins.
  plan::ResidentTokens TakeResident(const Sequence& sequence);
  // `found`: what it shares on these nodes, and has read from the spill tier behind that.
  void Join(Sequence& sequence, uint32_t lane, const std::vector<uint32_t>& nodes,
            const PrefixCache::Found& found, OpenStep& open);
  // One whose K and V are in a spill tier joins once they are all there and there is room for them:
  // whether it has.
  bool Restore(Sequence& sequence, uint32_t lane, OpenStep& open);
  void JoinForks(Sequence& parent, OpenStep& open);
  bool MayJoinWith(const Sequence& fork, const Sequence& parent) const;

  const SchedulerOptions& options_;
  SequenceLife& life_;
  SequenceLife::Places places_;
  const LaneBalance& balance_;
  StepMaker& maker_;
  Placement& placement_;
  NewcomerNodes nodes_;
  // They ran in the epoch before; in service order, but those with more than one token to compute
  // behind the others.
  std::deque<plan::SequenceId> survivors_;
  size_t survivors_now_ = 0;                   // The first ones, for which nobody has to wait.
  std::vector<plan::SequenceId> catching_up_;  // Those that joined and have no token since.
  bool survivors_known_ = true;
};

}  // namespace lamina::core
