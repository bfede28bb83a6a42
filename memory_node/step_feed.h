// SPDX-License-Identifier: Apache-2.0
//
// StepFeed: takes step plans, applies their changes to the slot tables, and knows which step each
// lane is in.
//
// Plans of a lane are begun in the order in which they come. One without rows here is over at once;
// of one with rows the sources are asked who serves it (WorkSource::TakeStep), and it lasts until
// EndStep().
//
// What a plan has read back from the spill tier does not wait for its step: nobody uses these slots
// before (SlotTables::TakeReads()).
//
// A query window may come before its plan: shared memory outruns gRPC. Whoever finds one calls
// Await(), and goes on with other lanes: the lane is then awaited, and Look() says whether its plan
// came in time.
//
// Threading:  PushPlan() from any thread; everything else the data thread.
// Allocation: tables grow when sequences join.
// Limits:     plans in the inbox: plan_ahead steps of each lane, by the protocol.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "control/inbox.h"
#include "memory_node/lane.h"
#include "memory_node/node_epoch.h"
#include "memory_node/query_checks.h"
#include "memory_node/work_source.h"
#include "plan/slot_tables.h"
#include "plan/step_plan.h"

namespace lamina::memory_node {

class StepFeed {
 public:
  // References must outlive this. `tails`: as SlotTables has it.
  StepFeed(const NodeEpoch& epoch, const QueryChecks& checks, plan::Tails* tails);

  // Who is asked to serve steps, in this order. Call before anything else.
  void SetSources(std::vector<WorkSource*> sources) { sources_ = std::move(sources); }

  // Who is told what plans move to and from the spill tier. Without one plans must not. Before each
  // plan it is called with nothing, and calls EndMove() for all moves whose reports the plan may
  // follow from. Errors end the epoch.
  using Mover = std::function<absl::Status(const std::vector<plan::SlotMove>&)>;
  void SetMover(Mover mover) { mover_ = std::move(mover); }
  // A move has ended, well or not.
  void EndMove(uint64_t spill) { tables_.EndMove(spill); }

  void PushPlan(plan::StepPlan plan) { inbox_.Push(std::move(plan)); }

  std::vector<Lane>& lanes() { return lanes_; }
  const plan::SlotTables& tables() const { return tables_; }

  // Whether TakePlans() would take any.
  bool has_plans() const { return !inbox_.empty(); }
  // Takes what has come, in the order of its coming: a sequence may leave one lane and join
  // another. Errors: kInternal  a plan that does not follow from the tables; those of TakeStep().
  absl::Status TakePlans();

  // Called in TakeStep() by a source that has a part in the step besides the one that serves its
  // units: the step lasts until each of them has ended it.
  void Join(Lane& lane) { ++lane.users; }

  // All units of the lane's step have been served, or all of a part that joined. The last one
  // begins the next step if its plan is here.
  // Errors: as TakePlans().
  absl::Status EndStep(Lane& lane);

  // A window of `sender` with this signal value is here. True: so is the lane's plan. False: it is
  // awaited from now on, until the peer deadline. Errors: as TakePlans().
  absl::StatusOr<bool> Await(Lane& lane, uint32_t sender, uint64_t value);

  // Whether the lane's plan is awaited, and that of any lane.
  bool Awaits(const Lane& lane) const { return waits_[lane.index].since != 0; }
  bool awaits_any() const { return awaited_ > 0; }

  // While a lane's plan is awaited: when Look() is due.
  Nanos LookAt() const { return look_at_; }

  // Takes what has come. Errors: as TakePlans(); kDeadlineExceeded  a lane's plan has not come in
  // time, blamed on the sender of its window.
  absl::Status Look();

 private:
  // A lane whose window came before its plan.
  struct PlanWait {
    Nanos since = 0;  // 0: none.
    uint32_t sender = 0;
    uint64_t value = 0;
  };

  absl::Status Advance(Lane& lane);
  absl::Status ApplyChanges(const plan::StepPlan& plan);
  absl::Status ReadAhead(plan::StepPlan& plan);
  absl::Status Begin(const plan::StepPlan& plan, Lane& lane);
  absl::Status CheckWaits(Nanos now);

  const NodeEpoch& epoch_;
  const QueryChecks& checks_;
  std::vector<WorkSource*> sources_;
  Mover mover_;
  control::Inbox<plan::StepPlan> inbox_;
  std::vector<plan::StepPlan> taken_;
  std::vector<Lane> lanes_;
  std::vector<PlanWait> waits_;  // [lanes]
  uint32_t awaited_ = 0;         // Lanes whose plan is awaited.
  Nanos look_at_ = 0;
  plan::SlotTables tables_;
};

}  // namespace lamina::memory_node
