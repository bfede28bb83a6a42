// SPDX-License-Identifier: Apache-2.0
//
// Scheduler: continuous batching over lanes. Decides at every step which sequences decode, which
// prompt chunks run beside them, where new sequences live, and who is preempted when slots run out.
//
// A pure state machine: calls in, plans and events out. The owner sends plans to the nodes, feeds
// results back, and streams events to clients.
//
//   Submit ----> waiting --(slots, rows)--> prefilling --> decoding --> finished
//                   ^                            |             |
//                   +-------- preempted <--------+-------------+
//
// Plans run ahead: at most `plan_ahead` steps of a lane are planned and not yet done, so that nodes
// never wait for the coordinator. A row that ends by an end token may run dead in the steps planned
// meanwhile; its results there are discarded.
//
// Preemption: when a decode row gets no slot, the last sequence in service order on its memory node
// (first come first served: the one submitted last) is taken out at a step border. Results of the
// steps planned with it still count. Its slots are in quarantine, and it may not join again, until
// the step that carries its leave is done; then it waits in its old place of the service order, and
// is later recomputed from prompt and committed tokens. Clients see a pause, never a token twice.
//
// Lanes: newcomers join the lane with the least work; a sequence changes lanes when the work
// becomes uneven, or when other rows of its lane have left and fewer lanes are faster
// (scheduler_lanes.cc).
//
// With prefill lanes (prefill.mode dedicated) newcomers join the one of these with the most room in
// its next step. It plans chunks only, at its own pace; a sequence whose prompt is done goes on in
// one of the other lanes, which plan rows only.
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
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "coordinator/core/kv_directory.h"
#include "coordinator/core/lane_count.h"
#include "coordinator/core/row_chunks.h"
#include "plan/prefill_lanes.h"
#include "plan/step_plan.h"

namespace lamina::core {

struct MemoryNodeShare {
  std::string name;
  uint32_t slots = 0;
  double bandwidth_bytes_per_second = 0;  // Measured by the node at start; relative size matters.
};

struct SchedulerOptions {
  uint32_t lanes = 1;                // That decode.
  plan::PrefillLanes prefill_lanes;  // Behind these. Of epoch 0.
  bool lanes_auto = false;           // Any number up to `lanes`, by measured times (lane_count.h).
  std::string lanes_why = "as configured";  // Without lanes_auto.
  RowChunkOptions row_chunks;               // In how many chunks a lane's rows go to a memory node.
  uint32_t plan_ahead = 2;
  uint32_t rows_max = 256;         // Decode rows of a lane.
  uint32_t step_tokens_max = 512;  // Decode rows plus chunk tokens of a step.
  uint32_t chunk_tokens = 512;     // Largest chunk of one prompt.
  // Of a compute node, for all prompts in prefill of all lanes, or of its replica's prefill lanes.
  uint32_t scratch_tokens = 8192;
  uint32_t sequence_tokens_max = 8192;
  uint32_t running_max = 256;
  uint32_t waiting_max = 1024;
  // Slots that must be free for each sequence already on the memory node before another one joins.
  // More of them: fewer preemptions, less of the memory used.
  uint32_t admission_headroom = 16;
  // Partition token_range: sequences are cut into spans of so many tokens, which may lie on
  // different memory nodes. 0: a sequence lies on one.
  uint32_t span_tokens = 0;
  uint32_t soft_reservation_min = 64;  // See KvDirectoryOptions.
  uint32_t soft_reservation_max = 256;
  // Of epoch 0. May be empty: then Submit answers kUnavailable until StartEpoch brings some.
  std::vector<MemoryNodeShare> memory_nodes;

  // Errors: kInvalidArgument  a limit is 0, or sequence_tokens_max is more than scratch_tokens (a
  //                           prompt lies in the scratch as a whole).
  absl::Status Validate() const;
};

// One sequence to generate (or score). A request for n choices is n of these with one `group`.
struct SequenceRequest {
  plan::SequenceId id = 0;
  // The first sequence of the same request, whose prompt's K and V it may share. They do share if
  // this one is submitted before the first one joins, and there is room for its row.
  plan::SequenceId fork_of = 0;
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  uint32_t tokens_max = 0;  // In all, the prompt included. Not used when scoring.
  uint32_t tokens_min = 0;
  std::vector<TokenId> end_tokens;
  int32_t priority = 0;  // Higher is sooner, under the priority policy.
  bool score = false;
  Nanos submitted = 0;  // For metrics; not used in decisions.
};

struct TokenEvent {
  plan::SequenceId sequence = 0;
  uint32_t index = 0;  // 0 for the first generated token. Each index comes exactly once.
  plan::SampledToken token;
};
struct FinishEvent {
  plan::SequenceId sequence = 0;
  plan::FinishReason reason = plan::FinishReason::kNone;
  absl::Status status;  // Why, for kError.
};
// A FinishEvent with kLength follows in the same Events.
struct ScoreEvent {
  plan::SequenceId sequence = 0;
  std::vector<float> logprobs;         // [prompt - 1]: of tokens 1, 2, ...
  std::vector<plan::TokenRank> ranks;  // The same, or none.
};
// In the order in which they are to be shown: per sequence tokens or score, then its end.
struct Events {
  std::vector<TokenEvent> tokens;
  std::vector<ScoreEvent> scores;
  std::vector<FinishEvent> finished;
  std::vector<plan::SequenceId> preempted;  // Since the last call that took Events.
};

// The order in which waiting sequences are served.
class ServiceOrder {
 public:
  virtual ~ServiceOrder() = default;
  virtual absl::string_view name() const = 0;
  // Whether `a` goes before `b`; a strict weak order. Preempted sequences keep their arrival
  // number.
  virtual bool Before(const SequenceRequest& a, uint64_t arrival_a, const SequenceRequest& b,
                      uint64_t arrival_b) const = 0;
};
std::unique_ptr<ServiceOrder> MakeFirstComeFirstServed();
std::unique_ptr<ServiceOrder> MakePriorityOrder();  // Priority, then arrival.

struct SchedulerStats {
  uint32_t waiting = 0;
  uint32_t running = 0;
  uint64_t preemptions = 0;
  uint64_t tokens_committed = 0;
  uint64_t rows_dead = 0;
  uint64_t lane_moves = 0;   // Of sequences from lane to lane.
  LaneCount lane_count;      // Over how many lanes sequences are spread now, and why.
  RowChunkCount row_chunks;  // Of the last step with rows.
  struct Lane {
    uint32_t rows = 0;
    uint64_t context_tokens = 0;
    uint64_t step_planned = 0;
    uint64_t step_done = 0;
    bool prefill = false;
  };
  std::vector<Lane> lanes;  // Prefill lanes last.
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
  //         kResourceExhausted  waiting_max reached; says the limit.
  //         kUnavailable        no memory node has joined.
  // Requires: the id is not 0 and was never used.
  absl::Status Submit(SequenceRequest request);

  // Ends a sequence early: by the client, or (kStop) by a stop string seen in the text. Its slots
  // are released at the next step border. Emits no event. Unknown ids are ignored. Its forks that
  // wait for its prefill are prefilled on their own.
  void Finish(plan::SequenceId sequence);

  // Starts an epoch with these memory nodes: step numbers start again, nothing is held. Sequences
  // that were running go back to the front of the queue with what they have committed, and are
  // recomputed, wherever their K and V were. `lost` names the nodes of any role whose loss ended
  // the epoch before: sequences that were running then remember it, and those that have lived
  // through too many losses without a new token (loss_history.h) end with kError and
  // kUnavailable. So do sequences that no node of the new epoch could hold. With `prefill_lanes`
  // prompts run in these alone; without them in the same steps as rows.
  void StartEpoch(uint64_t epoch, const std::vector<MemoryNodeShare>& memory_nodes,
                  const std::vector<std::string>& lost, Events& events,
                  const plan::PrefillLanes& prefill_lanes = {});

  // What was measured of late; decides over how many lanes the rows are spread.
  void SetLaneCosts(const cost::LaneCosts& costs);
  // The same of links; decides in how many chunks rows leave.
  void SetLinkCosts(const cost::LinkCosts& costs);

  // All rows run in one lane from now on, `why` in words; empty: as the options say. Between
  // epochs. Requires: options.rows_max allows it.
  void HoldOneLane(std::string why);

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

  // Ends everything with kError and `status`.
  void FailAll(const absl::Status& status, Events& events);

  bool HasWork() const;
  SchedulerStats Stats() const;
  // Of the last Plan().
  const LaneCount& lane_count() const;
  const KvDirectory& kv() const;

  // Audit of every invariant, KV directory included; kInternal names the first broken one.
  absl::Status Audit() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lamina::core
