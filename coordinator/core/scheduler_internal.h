// SPDX-License-Identifier: Apache-2.0
//
// Scheduler::Impl: the state behind Scheduler, shared by the files scheduler*.cc. scheduler.cc
// holds the life of a sequence, scheduler_plan.cc what a step is made of, scheduler_results.cc what
// comes back, scheduler_audit.cc the invariants.
//
// A sequence is in one place at a time:
//   waiting    in `waiting`; holds nothing on any node.
//   prefilling in `running` of its lane until the step of its last chunk is done.
//   decoding   in `running` of its lane; one row in every step planned.
//   draining   in `draining`; preempted, its leave is planned or about to be. Results of steps
//              planned before still count. Waits again once the step with its leave is done.

#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "coordinator/core/lane_count.h"
#include "coordinator/core/loss_history.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/core/scratch_space.h"
#include "coordinator/core/sequence_kv.h"

namespace lamina::core {

enum class SequenceState : uint8_t { kWaiting, kPrefilling, kDecoding, kDraining };

struct Sequence {
  SequenceRequest request;
  uint64_t arrival = 0;
  std::vector<TokenId> committed;       // Generated and shown.
  LossHistory losses;                   // Since the last committed token.
  std::vector<plan::SequenceId> forks;  // Submitted with fork_of = this one.
  SequenceState state = SequenceState::kWaiting;

  // While running:
  uint32_t lane = 0;
  uint32_t next_lane =
      0;  // Where it is wanted; differs from `lane` until its planned rows are done.
  uint64_t last_step = 0;       // Of the lane: the last one planned with a row of it.
  uint32_t node = 0;            // Where its next token goes.
  uint32_t join_tokens = 0;     // Prompt and committed tokens when it joined.
  uint32_t chunked_tokens = 0;  // Of those, planned in chunks.
  uint32_t planned_tokens = 0;  // Tokens in all once every planned step is done.
  bool has_scratch = false;
  uint32_t scratch_offset = 0;
  plan::SequenceId parent = 0;             // Whose last chunk samples its first token.
  std::vector<plan::SequenceId> attached;  // The reverse of `parent`.
  bool starving = false;                   // Its next row got no slot.
  std::vector<float> logprobs;             // Score.
  std::vector<plan::TokenRank> ranks;      // The same.

  uint32_t tokens() const {
    return static_cast<uint32_t>(request.prompt.size() + committed.size());
  }
  // The last token sampled is never an input, so its K and V are never stored.
  uint32_t slots_max() const {
    return request.score ? static_cast<uint32_t>(request.prompt.size()) : request.tokens_max - 1;
  }
};

struct ServiceBefore {
  const ServiceOrder* order;
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (order->Before(a->request, a->arrival, b->request, b->arrival)) {
      return true;
    }
    return !order->Before(b->request, b->arrival, a->request, a->arrival) &&
           a->arrival < b->arrival;
  }
};
using SequenceQueue = std::set<Sequence*, ServiceBefore>;

// What a plan's leaves set free once its step is done.
struct StepBorder {
  std::vector<plan::SequenceLeave> leaves;
  uint64_t ticket = 0;                     // Of the KV directory; 0 is none.
  std::vector<uint32_t> scratch;           // Offsets.
  std::vector<plan::SequenceId> draining;  // They wait again.
};

struct PlannedToken {
  plan::SequenceId sequence = 0;
  uint32_t position = 0;  // Of the token that is sampled.
};
struct PlannedScore {
  plan::SequenceId sequence = 0;
  bool last = false;
};

// A step that is planned and not yet done.
struct PlannedStep {
  uint64_t step = 0;
  StepBorder border;
  std::vector<PlannedToken> tokens;
  std::vector<PlannedScore> scores;
};

struct Lane {
  uint64_t step_planned = 0;
  uint64_t step_done = 0;
  std::deque<PlannedStep> in_flight;
  std::vector<Sequence*> running;        // In service order.
  std::vector<uint64_t> context_tokens;  // Per memory node.
  uint64_t context_tokens_all = 0;
  StepBorder border;  // Goes out with the next plan.
};

// A step being planned.
struct OpenStep {
  plan::StepPlan plan;
  PlannedStep record;
  uint32_t tokens_left = 0;  // Of the step's budget.
};

struct Scheduler::Impl {
  Impl(const SchedulerOptions& scheduler_options, std::unique_ptr<ServiceOrder> service_order);

  SchedulerOptions options;
  std::unique_ptr<ServiceOrder> order;
  ServiceBefore before;
  uint64_t epoch = 0;
  std::unique_ptr<SequenceKv> kv;
  std::vector<ScratchSpace> scratch;  // One, or one of each replica for prompts.
  std::map<plan::SequenceId, std::unique_ptr<Sequence>> sequences;
  SequenceQueue waiting;
  SequenceQueue draining;
  std::vector<Lane> lanes;                       // Prefill lanes last.
  std::vector<std::vector<Sequence*>> starving;  // Per memory node.
  std::vector<plan::SequenceId> preempted;       // Not yet told.
  uint64_t arrivals = 0;
  uint64_t tickets = 0;
  cost::LaneCosts lane_costs;
  cost::LinkCosts link_costs;
  LaneCount lane_count;
  std::string one_lane_why;   // Of HoldOneLane().
  uint32_t lanes_active = 1;  // The first ones; the others get no newcomers.
  SchedulerStats counters;    // The counts in it; the rest is filled in on demand.

  // scheduler.cc
  void ResetNodes(const std::vector<MemoryNodeShare>& memory_nodes,
                  const plan::PrefillLanes& prefill_lanes);
  bool IsPrefillLane(uint32_t lane) const { return lane >= options.lanes; }
  ScratchSpace& ScratchOf(uint32_t lane) {
    return scratch[IsPrefillLane(lane) ? options.prefill_lanes.ReplicaOf(lane - options.lanes) : 0];
  }
  // The longest sequence that the memory nodes can hold when it is alone.
  uint32_t TokensOfLongest() const;
  // Adds a sequence's tokens to the lane's context on each node, or takes them away.
  void AddContext(const Sequence& sequence, Lane& lane);
  void TakeContext(const Sequence& sequence, Lane& lane);
  bool LivesOn(const Sequence& sequence, uint32_t node) const;
  Sequence* Find(plan::SequenceId id);
  uint32_t Running() const;
  std::vector<Sequence*> TakenFromNodes();
  // Takes a running sequence out of its lane: it leaves with the lane's next plan.
  void TakeOut(Sequence& sequence);
  void Preempt(Sequence& sequence);
  // Takes a sequence out of wherever it is and forgets it.
  void End(Sequence& sequence);
  void ClearStarving(Sequence& sequence);
  // Cuts the ties between a sequence, the parent it waits for and the forks that wait for it, which
  // are returned.
  std::vector<Sequence*> Detach(Sequence& sequence);

  // scheduler_plan.cc
  OpenStep BeginStep(uint32_t lane_index);
  void PlanRows(Lane& lane, OpenStep& open);
  bool GrowByOne(Sequence& sequence, OpenStep& open);
  void Starve(Sequence& sequence);
  void PlanChunks(Lane& lane, OpenStep& open);
  void PlanChunk(Sequence& sequence, OpenStep& open);
  void Admit(std::map<uint32_t, OpenStep>& open);
  bool AdmitFirst(std::map<uint32_t, OpenStep>& open);
  // The open lane that a newcomer joins; none when it has to wait for the next step of one.
  std::optional<uint32_t> PickLaneToJoin(const std::map<uint32_t, OpenStep>& open) const;
  bool HasRoomForRow(uint32_t lane) const;
  // The memory nodes of the spans that a sequence joins with, beside so many tokens of context on
  // each; empty when there is no room.
  std::vector<uint32_t> PickNodesFor(const Sequence& sequence,
                                     const std::vector<uint64_t>& context_tokens) const;
  // Of the lane that a sequence will decode in: of all, if that is not decided yet.
  std::vector<uint64_t> ContextBeside(uint32_t lane) const;
  // Where the next span of a running sequence goes; one with room, if there is one.
  uint32_t PickNextNode(const Sequence& sequence) const;
  bool NodeHasRoom(uint32_t node, uint32_t tokens) const;
  uint32_t RowsOn(uint32_t node) const;
  void Join(Sequence& sequence, uint32_t lane, const std::vector<uint32_t>& nodes, OpenStep& open);
  void AddToLane(Sequence& sequence);
  void JoinForks(Sequence& parent, OpenStep& open);
  bool FinishStep(uint32_t lane_index, OpenStep& open);
  RowChunkCount RowChunksFor(const Lane& lane, const plan::StepPlan& plan);

  // scheduler_lanes.cc
  void BalanceLanes();
  void UpdateLaneCount();
  std::vector<LaneLoad> LaneLoads() const;
  bool MayMove(const Sequence& sequence) const;
  void EvenOut(const std::vector<LaneLoad>& loads);
  void FinishMoves(uint32_t index);

  // scheduler_results.cc
  absl::Status CheckResult(const PlannedStep& planned, const plan::StepResult& result);
  absl::Status CheckTokens(const PlannedStep& planned, const plan::StepResult& result);
  absl::Status CheckScores(const PlannedStep& planned, const plan::StepResult& result);
  void Commit(const plan::SampledToken& token, Events& events);
  void CommitScores(const PlannedStep& planned, const plan::StepResult& result, Events& events);
  void PassBorder(uint32_t lane, const StepBorder& border);

  // scheduler_audit.cc
  absl::Status Audit() const;
  absl::Status AuditSequence(const Sequence& sequence) const;
  absl::Status AuditLane(uint32_t index) const;
};

}  // namespace lamina::core
