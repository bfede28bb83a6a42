// SPDX-License-Identifier: Apache-2.0
//
// Scheduler: continuous batching over lanes. Decides at every step which sequences decode, which
// prompt chunks share their steps, where new sequences live, and who is preempted when slots run
// out.
//
// A pure state machine: calls in, plans and events out. The owner sends plans to the nodes, feeds
// results back, and streams events to clients.
//
//   Submit ----> waiting --(slots, rows)--> prefilling --> decoding --> finished
//                   ^                            |             |
//                   +-------- preempted <--------+-------------+
//
// Plans run ahead: at most `plan_ahead` steps of a lane are planned and not yet done, so that nodes
// never wait for the coordinator. A row that ends by an end token may run in vain in the steps
// planned meanwhile; its results there are discarded.
//
// Preemption: when a decode row gets no slot, a sequence on its memory node is taken out at a step
// border: which one, a strategy says (out_of_slots.h; the last in service order, unless another one
// is chosen). Results of the steps planned with it still count. Its slots are in quarantine, and it
// may not join again, until the step that carries its leave is done; then it waits in its old place
// of the service order, and is later recomputed from prompt and committed tokens. Clients see a
// pause, never a token twice.
//
// Lanes: newcomers join the lane with the least work (placement.h); a sequence changes lanes when
// the work becomes uneven, when other rows of its lane have left and fewer lanes are faster
// (lane_balance.h), or when it changes places with one of another lane (lane_packing.h). All
// sequences of a lane attend by one path (lane_paths.h).
//
// With prefill lanes (prefill.mode dedicated) newcomers join the one of these with the most room in
// its next step. It plans chunks only, at its own pace; a sequence whose prompt is done goes on in
// one of the other lanes, which plan rows only. So do those that find most of their tokens, and
// beams that continue others.
//
// Parts: sequence_life.h (states, queue, forks), lanes.h and node_residents.h (who runs where, and
// what that weighs), lane_balance.h (who changes lanes), step_maker.h with row_slots.h (what a step
// is made of), admission.h with newcomer_nodes.h (who joins it, and where), prefix_cache.h (what is
// kept for others), beam_groups.h (beams), kept_sequences.h (what outlives
// an epoch), planned_steps.h (under way), step_commit.h (what a step brings back), step_borders.h
// (what it sets free). Strategies: placement.h, out_of_slots.h, step_packing.h, lane_packing.h,
// service_order.h.
//
// The decode of a sequence is planned when the step of its last chunk is done, that is, when its
// memory node has confirmed the K and V of the whole prompt.
//
// Threading: one thread. No I/O, no clock of its own, no hash-map iteration.
// Determinism: same calls, same plans.
// Limits: every queue is bounded by SchedulerOptions.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/kv_directory.h"
#include "coordinator/core/lane_count.h"
#include "coordinator/core/lane_homes.h"
#include "coordinator/core/prefix_cache.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/sequence_request.h"
#include "coordinator/core/service_order.h"
#include "coordinator/core/spills.h"
#include "coordinator/core/sub_batches.h"
#include "cost/layer_seconds.h"
#include "plan/prefill_lanes.h"
#include "plan/step_plan.h"

namespace lamina::core {

struct SchedulerStats {
  uint32_t waiting = 0;
  uint32_t running = 0;
  uint64_t preemptions = 0;
  uint64_t tokens_committed = 0;
  uint64_t rows_discarded = 0;
  uint64_t lane_moves = 0;    // Sequences that went from lane to lane.
  LaneCount lane_count;       // Over how many lanes sequences are spread now, and why.
  SubBatchCount sub_batches;  // As chosen for the last step with rows.
  FetchShare fetch_share;     // As chosen for the last step with something to choose.
  PrefixCacheStats prefix_cache;
  SpillStats spills;
  struct LaneStats {
    uint32_t rows = 0;
    uint32_t prefilling = 0;      // So many of the rows are at their prompts.
    uint64_t context_tokens = 0;  // What layers see of their contexts,
    uint64_t tokens = 0;          // and all tokens of these.
    uint64_t step_planned = 0;
    uint64_t step_done = 0;
    bool prefill = false;
    std::optional<plan::AttentionPath> path = {};  // That of its sequences; none: it is empty.
  };
  std::vector<LaneStats> lanes;  // Prefill lanes last.
};

class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, std::unique_ptr<ServiceOrder> order);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Errors: kInvalidArgument    empty prompt; prompt or tokens_max beyond the limit (both numbers);
  //                             tokens_max that leaves nothing to generate; a request that no
  //                             memory node could ever hold (slots needed and slots there).
  //         kResourceExhausted  waiting_max reached; says the limit. Not for accepted_before.
  //         kUnavailable        no memory node has joined.
  //         kUnimplemented      decode_from where steps take no tokens of prompts as rows.
  // Requires: the id is not 0 and was never used. Those of a beam search's answers too.
  absl::Status Submit(SequenceRequest request);

  // Ends a sequence early: by the client, or (kStop) by a stop string seen in the text. Its slots
  // are released at the next step border. Emits no event. Unknown ids are ignored. Its forks that
  // wait for its prefill are prefilled on their own.
  void Finish(plan::SequenceId sequence);

  // Starts an epoch with these memory nodes: step numbers start again, nothing is held. Sequences
  // that were running go back to the front of the queue with what they have committed, and are
  // recomputed, but for what is kept of them (cached, or cut) on nodes with their old arena. `lost`
  // names the nodes of any role whose loss ended the epoch before: sequences that were running then
  // remember it, and those that have lived through too many losses without a new token
  // (loss_history.h) end with kError and kUnavailable. So do sequences that no node of the new
  // epoch could hold. With `prefill_lanes` prompts run in these alone; without them in the same
  // steps as rows. `homes` says whether lanes are bound to nodes.
  void StartEpoch(uint64_t epoch, const std::vector<MemoryNodeShare>& memory_nodes,
                  const std::vector<std::string>& lost, Events& events,
                  const plan::PrefillLanes& prefill_lanes = {}, const LaneHomes& homes = {});

  // In which memory the slots of each node lie, in the order of StartEpoch, before anything runs in
  // the epoch: what was kept of nodes whose slots lie elsewhere than they were said to is
  // gone. Requires: as many as there are; nothing runs.
  void SetArenas(const std::vector<uint64_t>& arenas);

  // What was measured of late; decides over how many lanes the rows are spread.
  void SetLaneCosts(const cost::LaneCosts& costs);
  // As above, for links; decides in how many chunks rows leave.
  void SetLinkCosts(const cost::LinkCosts& costs);

  // What nodes have measured of fetching. Used by later steps (fetch_planning.h, lane_packing.h).
  void SetFetchRates(const FetchRates& rates);

  // Rows run in the first so many lanes from now on, `why` in words; 0: as the options say. Between
  // epochs. Requires: no more than options.lanes, whose rows_max allows it.
  void HoldLanes(uint32_t lanes, std::string why);

  // By which path sequences attend that join from now on and whose requests name none. Between
  // epochs.
  void SetAttentionPath(plan::AttentionPath path);

  // How fast the memory nodes are, in the order of StartEpoch: new sequences and spans are shared
  // out by it; those that are there stay. Requires: as many as there are.
  void SetBandwidths(const std::vector<double>& bytes_per_second);

  // Plans as many steps as plan_ahead allows, over all lanes; appends them in the order of sending.
  // A lane without work gets none; a lane without rows but with leaves gets a plan of leaves only.
  void Plan(std::vector<plan::StepPlan>& plans);

  // Takes the result of the oldest step of its lane that is not done. To be called when every node
  // that the plan went to has reported the step: slots of sequences that left with it are free now.
  // Results of another epoch are ignored.
  // Errors: kInternal  not the expected step, a row that was not planned, or one that is missing: a
  //                    bug of a node. Nothing changed.
  absl::Status OnStepDone(const plan::StepResult& result, Events& events);

  // A memory node has written or read what a plan spilled, or could not: then it is recomputed.
  // Reports of another epoch, and such as nobody waits for, are ignored.
  void OnSpilled(const plan::SpillReport& report);

  // What prompts were computed at of late, in tokens a second, all lanes together.
  void SetPromptRate(double tokens_per_second);

  // Ends everything with kError and `status`.
  void FailAll(const absl::Status& status, Events& events);

  bool HasWork() const;
  // Whether a planned step is not done.
  bool HasStepsUnderWay() const;
  SchedulerStats Stats() const;
  // How many sequences run that attend by this path.
  uint32_t RunningBy(plan::AttentionPath path) const;
  // A memory node's slots. Those that only the prefix cache holds count as kept, not as held.
  KvPoolStats KvStats(uint32_t memory_node) const;
  // The lanes that the last Plan() chose.
  const LaneCount& lane_count() const;
  const KvDirectory& kv() const;
  const PrefixCache& prefix_cache() const;

  // A beam search runs under ids of its own: the id of the request that `sequence` works for.
  plan::SequenceId AnswerOf(plan::SequenceId sequence) const;

  // Audit of every invariant, KV directory included; kInternal names the first broken one.
  absl::Status Audit() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lamina::core
