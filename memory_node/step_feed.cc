// SPDX-License-Identifier: Apache-2.0
#include "memory_node/step_feed.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "control/blame.h"
#include "memory_node/step_rows.h"
#include "plan/epoch_shape.h"

namespace lamina::memory_node {
namespace {

// An awaited plan is looked for as often as this at first, more seldom the longer it is late.
constexpr Nanos kLookMin = Micros(20);
constexpr Nanos kLookMax = Millis(1);
constexpr int kLooksSlower = 8;  // The pause is this part of the time since.

}  // namespace

StepFeed::StepFeed(const NodeEpoch& epoch, const QueryChecks& checks, plan::Tails* tails)
    : epoch_(epoch),
      checks_(checks),
      lanes_(epoch.config.lanes),
      waits_(epoch.config.lanes),
      tables_(
          {.node = epoch.node,
           .slots = epoch.config.slots[epoch.node],
           .span_tokens = epoch.config.span_tokens,
           .holds_all = plan::IsSpread(epoch.config),
           .tails = epoch.config.int8_tails,
           .int8_slots = epoch.config.int8_slots.empty() ? 0 : epoch.config.int8_slots[epoch.node],
           .hybrid_slots =
               epoch.config.hybrid_slots.empty() ? 0 : epoch.config.hybrid_slots[epoch.node]},
          tails) {
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].index = lane;
  }
}

absl::Status StepFeed::TakePlans() {
  if (inbox_.empty()) {
    return absl::OkStatus();
  }
  taken_.clear();
  inbox_.TakeAll(taken_);
  for (plan::StepPlan& plan : taken_) {
    if (plan.epoch == epoch_.config.epoch && plan.lane < lanes_.size()) {
      Lane& lane = lanes_[plan.lane];
      lane.plans.push_back(std::move(plan));
      LAMINA_RETURN_IF_ERROR(Advance(lane));
      if (!lane.plans.empty()) {
        LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(ReadAhead(lane.plans.back())));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StepFeed::EndStep(Lane& lane) {
  if (--lane.users > 0) {
    return absl::OkStatus();
  }
  lane.step = 0;
  lane.server = nullptr;
  LAMINA_RETURN_IF_ERROR(Advance(lane));
  // One that has come during the step, in which nobody looked. Sources that run ahead would begin
  // with the next step's first rows only.
  return lane.step == 0 ? TakePlans() : absl::OkStatus();
}

// Applies plans of a lane whose step is done, up to the next one that has rows here.
absl::Status StepFeed::Advance(Lane& lane) {
  size_t applied = 0;
  while (lane.step == 0 && applied < lane.plans.size()) {
    const plan::StepPlan& plan = lane.plans[applied++];
    LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(ApplyChanges(plan)));
    LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(CollectRows(epoch_.config, tables_, plan, lane)));
    if (!lane.rows.empty() || lane.chunk_tokens > 0 || !lane.fetched.empty()) {
      LAMINA_RETURN_IF_ERROR(epoch_.OwnFault(Begin(plan, lane)));
    }
  }
  lane.plans.erase(lane.plans.begin(), lane.plans.begin() + static_cast<std::ptrdiff_t>(applied));
  return absl::OkStatus();
}

absl::Status StepFeed::ApplyChanges(const plan::StepPlan& plan) {
  if (mover_ != nullptr) {
    LAMINA_RETURN_IF_ERROR(mover_({}));
  }
  LAMINA_RETURN_IF_ERROR(tables_.Apply(plan));
  const std::vector<plan::SlotMove> moves = tables_.TakeMoves();
  if (mover_ == nullptr) {
    const bool drops = std::all_of(moves.begin(), moves.end(), [](const plan::SlotMove& move) {
      return move.kind == plan::SlotMove::Kind::kDrop;  // Another node's.
    });
    return drops ? absl::OkStatus()
                 : absl::InternalError("the plan spills, and this node has no spill tier");
  }
  return moves.empty() ? absl::OkStatus() : mover_(moves);
}

// The plan waits for the step before it.
absl::Status StepFeed::ReadAhead(plan::StepPlan& plan) {
  if (mover_ == nullptr || plan.spills_in.empty()) {
    return absl::OkStatus();
  }
  LAMINA_RETURN_IF_ERROR(mover_({}));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<plan::SlotMove> reads, tables_.TakeReads(plan));
  return reads.empty() ? absl::OkStatus() : mover_(reads);
}

absl::Status StepFeed::Begin(const plan::StepPlan& plan, Lane& lane) {
  lane.step = plan.step;
  lane.users = 1;
  lane.pinned = !plan.chunks.empty();
  lane.chunking = plan.chunking;
  if (PlanWait& wait = waits_[lane.index]; wait.since != 0) {
    wait = {};
    --awaited_;
  }
  for (WorkSource* source : sources_) {
    LAMINA_ASSIGN_OR_RETURN(const bool taken, source->TakeStep(lane));
    if (taken) {
      lane.server = source;
      return absl::OkStatus();
    }
  }
  return absl::InternalError(absl::StrCat("nobody serves lane ", lane.index, " step ", lane.step));
}

absl::StatusOr<bool> StepFeed::Await(Lane& lane, uint32_t sender, uint64_t value) {
  LAMINA_RETURN_IF_ERROR(TakePlans());
  if (lane.step != 0) {
    return true;
  }
  PlanWait& wait = waits_[lane.index];
  if (wait.since == 0) {
    wait = {.since = RealClock().Now(), .sender = sender, .value = value};
    look_at_ = wait.since + kLookMin;
    ++awaited_;
  }
  return false;
}

absl::Status StepFeed::Look() {
  LAMINA_RETURN_IF_ERROR(TakePlans());
  return awaited_ == 0 ? absl::OkStatus() : CheckWaits(RealClock().Now());
}

// The lane that has waited for the shortest time decides when to look again.
absl::Status StepFeed::CheckWaits(Nanos now) {
  Nanos shortest = kLookMax * kLooksSlower;
  for (const Lane& lane : lanes_) {
    const PlanWait& wait = waits_[lane.index];
    if (wait.since == 0) {
      continue;
    }
    if (now - wait.since >= epoch_.peer_deadline) {
      return control::Blame(checks_.Unplanned(wait.sender, lane, wait.value),
                            epoch_.NameOf(wait.sender));
    }
    shortest = std::min(shortest, now - wait.since);
  }
  look_at_ = now + std::clamp(shortest / kLooksSlower, kLookMin, kLookMax);
  return absl::OkStatus();
}

}  // namespace lamina::memory_node
