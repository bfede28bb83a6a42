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

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/core/kept_sequences.h"
#include "coordinator/core/lane_balance.h"
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
  // The memory nodes of the spans that a sequence joins with in this lane; empty when there is no
  // room. What it finds kept on a node takes no room there.
  std::vector<uint32_t> PickNodesFor(const Sequence& sequence, uint32_t lane, uint32_t found_min);
  // Whether nodes with these parts of a newcomer have room for what it takes there (taken_, with
  // the last span as if it were full).
  bool KeptHaveRoom(absl::Span<const KeptSequences::Part> parts, uint32_t joins,
                    const std::vector<PrefixCache::Found>& kept);
  // The load of each node for the next `tokens` tokens of a newcomer, which has taken so many slots
  // there and makes its lane see so many tokens. `kept`: what it finds on each; it has to find
  // `found_min`. Valid until the next call.
  std::vector<NodeLoad>& LoadsOfNodes(const Sequence& sequence, uint32_t tokens, uint32_t found_min,
                                      const std::vector<uint64_t>& seen,
                                      const std::vector<uint32_t>& taken,
                                      const std::vector<PrefixCache::Found>& kept);
  // Whether so many tokens of a newcomer have slots there.
  bool NodeHasRoom(uint32_t node, uint32_t tokens) const;
  // Whether so many slots are free there, or come free once the cache drops what the newcomer does
  // not find, and nobody waits for them.
  bool HasSlots(uint32_t node, uint64_t wanted, uint32_t free,
                const PrefixCache::Found& found) const;
  uint64_t SlotsWanted(uint32_t node, uint32_t tokens, const PrefixCache::Found& found) const;
  // What a newcomer finds on each node.
  std::vector<PrefixCache::Found> FoundOnNodes(const Sequence& sequence) const;
  // Adds the open block that is kept of it on this node to what the cache has of a sequence, if
  // that follows; else drops it.
  void TakeOpenBlock(const Sequence& sequence, uint32_t node, PrefixCache::Found& found);
  // Has the cache, then what is kept of others that wait, give up slots that the sequence needs
  // besides those that it finds. Whether they are free now.
  bool MakeRoomFor(NewcomerLanes lanes, Sequence& sequence, uint32_t node,
                   const PrefixCache::Found& found);
  // As above, on all nodes where PickNodesFor() has put its spans.
  bool MakeRoomForSpans(const Sequence& sequence);
  // It has `away` tokens read from the spill tier, behind those that it finds.
  void Join(Sequence& sequence, uint32_t lane, const std::vector<uint32_t>& nodes, uint32_t away,
            OpenStep& open);
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
  // They ran in the epoch before; in service order, but those with more than one token to compute
  // behind the others.
  std::deque<plan::SequenceId> survivors_;
  size_t survivors_now_ = 0;                   // The first ones, for which nobody has to wait.
  std::vector<plan::SequenceId> catching_up_;  // Those that joined and have no token since.
  bool survivors_known_ = true;
  // Lists with an entry for each node, made anew for each newcomer in the memory of the last one's.
  std::vector<NodeLoad> loads_;
  std::vector<uint64_t> seen_;
  std::vector<uint32_t> taken_;
};

}  // namespace lamina::core
