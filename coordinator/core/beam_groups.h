// SPDX-License-Identifier: Apache-2.0
//
// BeamGroups: beam searches in flight. Each beam is a member of its group: a sequence of its own
// for one step, which joins with all tokens of the beam and ends with the row that samples the next
// one. A member that continues another shares its slots: nothing is copied, and one row is
// computed. With INT8 it shares those of closed blocks, and computes the open one again.
//
//   Begin --> (queue) --> runs --Report--> kept --(all reported: select)--> ready --Join--> runs
//                ^                           |                                |
//                +------- GiveWay -----------+--------------------------------+
//
// Between its report and the join of those that continue it the group holds its slots (HolderKind
// kBeam). A group that waits for a member with neither slots nor a step holds none meanwhile, since
// that member may need them: who continues without slots waits in the queue and is computed anew,
// but for what the prefix cache has.
//
// With prefill lanes who waits in the queue is computed there, or behind what it finds in a lane
// that decodes. Who continues another always joins one of these: its row attends where K and V lie.
//
// The answers of a group are told when its search is over, each under its own id.
//
// Threading: one thread.   Determinism: same calls, same answers.
// Cost: a join carries all tokens of the beam, O(tokens) for each beam and step.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/beam_search.h"
#include "coordinator/core/lane_balance.h"
#include "coordinator/core/lane_paths.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/sequence_life.h"
#include "coordinator/core/sequence_request.h"
#include "coordinator/core/step_maker.h"
#include "plan/attention_paths.h"

namespace lamina::core {

class BeamGroups {
 public:
  BeamGroups(const SchedulerOptions& options, SequenceLife& life,
             const SequenceLife::Places& places, const LanePaths& paths, const LaneBalance& balance,
             StepMaker& maker);

  // Errors: kInvalidArgument  more candidates of a row are needed than it reports: says how many
  //                           end tokens and beams there are.
  absl::Status Check(const SequenceRequest& request) const;

  // A search begins; its first member waits in the queue.
  void Begin(SequenceRequest request);

  // Whether the sequence is a member.
  bool Owns(plan::SequenceId sequence) const { return members_.contains(sequence); }
  // The answer under whose id a member's work is told; 0 for other sequences.
  plan::SequenceId AnswerOf(plan::SequenceId sequence) const;

  // What the row of a member brought. It ends. Returns how many tokens of answers were told.
  uint32_t Report(Sequence& member, const plan::SampledToken& token, Events& events);

  // Ends an answer early; the group ends with its last one. False: it is no answer of a group.
  bool Finish(plan::SequenceId answer);

  // Gives up slots that members of the same group may be waiting for, and of groups whose lanes
  // sequences of other paths have taken: they wait in the queue. Before steps are planned.
  void GiveWay();
  // Members that continue others join the step, before anything else is packed.
  void Join(OpenStep& open);

  // Before SequenceKv is reset: slots are gone, and who was to join waits in the queue.
  void LeaveEpoch();

  void FailAll(const absl::Status& status, Events& events);
  // Events of members become those of their groups: one that failed ends its group.
  void Translate(Events& events);

  // The path of each member that is to join the next step of a lane.
  std::vector<plan::AttentionPath> PathsBetweenSteps() const;

  bool empty() const { return groups_.empty(); }
  uint32_t holders() const;  // That hold slots.
  // Sequences that these groups may have in the queue.
  uint32_t members() const { return static_cast<uint32_t>(members_.size()); }
  // Errors: kInternal names the first broken invariant.
  absl::Status Audit() const;

 private:
  struct Member {
    plan::SequenceId id = 0;
    plan::SequenceId continues = 0;  // Ready: it shares the slots of this one.
    bool reported = false;
    bool kept = false;                     // The group holds its slots;
    uint32_t node = 0;                     // its last ones lie there.
    std::vector<plan::TokenLogprob> next;  // Reported.
  };
  struct Group {
    Group(SequenceRequest of, BeamLimits limits)
        : request(std::move(of)), search(request.beams, std::move(limits)) {}
    SequenceRequest request;
    std::vector<plan::SequenceId> answers;  // Best first; 0 for those that were ended early.
    BeamSearch search;
    uint64_t arrival = 0;
    uint32_t lane = 0;  // Where its members ran last.
    uint32_t cached_tokens = 0;
    std::vector<Member> members;  // In the order of search.beams().
    std::vector<Member> before;   // Whose slots members will share that have not joined yet.
  };

  uint32_t Continue(Group& group, Events& events);
  uint32_t Tell(Group& group, Events& events);
  void Fail(Group& group, const absl::Status& status, Events& events);
  void Forget(Group& group);
  Sequence& Enter(Group& group, size_t index);
  bool JoinsHere(const Group& group, size_t index, const OpenStep& open) const;
  uint32_t SharedOf(const Sequence& sequence) const;
  uint32_t LaneBehind(const Sequence& sequence) const;
  bool Takes(uint32_t lane, plan::AttentionPath path) const;
  bool HasSlotsBehind(const Member& from, uint32_t tokens);
  void JoinOne(Group& group, size_t index, OpenStep& open);
  void Release(Member& member);
  void ReleaseUnshared(Group& group);
  void QueueWithoutLane(Group& group);

  const SchedulerOptions& options_;
  SequenceLife& life_;
  SequenceLife::Places places_;
  const LanePaths& paths_;
  const LaneBalance& balance_;
  StepMaker& maker_;
  std::map<plan::SequenceId, std::unique_ptr<Group>> groups_;  // By the request's id.
  std::map<plan::SequenceId, Group*> members_;
  std::map<plan::SequenceId, Group*> answers_;
  plan::SequenceId ids_;  // The last id that a member got.
};

}  // namespace lamina::core
