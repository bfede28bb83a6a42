// SPDX-License-Identifier: Apache-2.0
//
// The scheduler's invariants, recounted from scratch.

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/core/scheduler_internal.h"

namespace lamina::core {

absl::Status Scheduler::Impl::AuditSequence(const Sequence& sequence) const {
  const plan::SequenceId id = sequence.request.id;
  const auto broken = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("sequence ", id, ": ", what));
  };
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the sets hold mutable pointers.
  Sequence* self = const_cast<Sequence*>(&sequence);
  const bool waits = sequence.state == SequenceState::kWaiting;
  const bool drains = sequence.state == SequenceState::kDraining;
  if (waiting.contains(self) != waits || draining.contains(self) != drains) {
    return broken("is not in the queue of its state");
  }
  const bool runs = !waits && !drains;
  // One that waits may remember a lane of an earlier epoch.
  const bool listed =
      sequence.lane < lanes.size() &&
      std::find(lanes[sequence.lane].running.begin(), lanes[sequence.lane].running.end(), self) !=
          lanes[sequence.lane].running.end();
  if (listed != runs) {
    return broken("runs and does not, or the reverse");
  }
  if (kv->IsOpen(id) != runs) {
    return broken("holds slots without running, or the reverse");
  }
  if (!sequence.request.score && sequence.tokens() >= sequence.request.tokens_max) {
    return broken("goes on beyond its last token");
  }
  if (!runs) {
    return !sequence.has_scratch && !sequence.starving ? absl::OkStatus()
                                                       : broken("waits, and holds something");
  }
  if (sequence.state == SequenceState::kDecoding &&
      kv->TokensOf(id) + 1 != sequence.planned_tokens) {
    return broken("has more or fewer slots than planned inputs");
  }
  if (sequence.state == SequenceState::kPrefilling && kv->TokensOf(id) != sequence.join_tokens) {
    return broken("has more or fewer slots than prompt tokens");
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Impl::AuditLane(uint32_t index) const {
  const Lane& lane = lanes[index];
  const auto broken = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("lane ", index, ": ", what));
  };
  if (lane.in_flight.size() > options.plan_ahead ||
      lane.step_planned - lane.step_done != lane.in_flight.size()) {
    return broken("miscounts its steps");
  }
  size_t rows = 0;
  for (const auto& [id, sequence] : sequences) {
    const bool runs = sequence->state == SequenceState::kPrefilling ||
                      sequence->state == SequenceState::kDecoding;
    rows += runs && sequence->next_lane == index;
  }
  if (rows > options.rows_max) {
    return broken("has more rows than rows_max");
  }
  if (!std::is_sorted(lane.running.begin(), lane.running.end(), before)) {
    return broken("is out of order");
  }
  std::vector<uint64_t> context(lane.context_tokens.size());
  uint64_t all = 0;
  for (const Sequence* sequence : lane.running) {
    if (sequence->lane != index) {
      return broken("has a row of another lane");
    }
    if (IsPrefillLane(index) && sequence->last_step > 0) {
      return broken("has decode rows, and is for prompts");
    }
    if (options.prefill_lanes.count() > 0 && !IsPrefillLane(index) &&
        sequence->state == SequenceState::kPrefilling) {
      return broken("has a prompt, and is for decode rows");
    }
    for (uint32_t node = 0; node < context.size(); ++node) {
      context[node] += kv->TokensOn(sequence->request.id, node);
    }
    all += kv->TokensOf(sequence->request.id);
  }
  if (context != lane.context_tokens || all != lane.context_tokens_all) {
    return broken("miscounts its context");
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Impl::Audit() const {
  LAMINA_RETURN_IF_ERROR(kv->Audit());
  for (uint32_t lane = 0; lane < lanes.size(); ++lane) {
    LAMINA_RETURN_IF_ERROR(AuditLane(lane));
  }
  for (const auto& [id, sequence] : sequences) {
    LAMINA_RETURN_IF_ERROR(AuditSequence(*sequence));
  }
  if (Running() > options.running_max) {
    return absl::InternalError("more sequences run than running_max");
  }
  if (waiting.size() + draining.size() > options.waiting_max + options.running_max) {
    return absl::InternalError("more sequences wait than can have been let in");
  }
  const size_t starve = std::accumulate(
      starving.begin(), starving.end(), size_t{0},
      [](size_t sum, const std::vector<Sequence*>& node) { return sum + node.size(); });
  const auto marked = std::count_if(sequences.begin(), sequences.end(),
                                    [](const auto& entry) { return entry.second->starving; });
  if (starve != static_cast<size_t>(marked)) {
    return absl::InternalError("the lists of starving sequences are wrong");
  }
  const bool scratch_held =
      std::any_of(scratch.begin(), scratch.end(), [](const auto& space) { return !space.empty(); });
  if (Running() == 0 && scratch_held &&
      std::all_of(lanes.begin(), lanes.end(), [](const Lane& lane) {
        return lane.in_flight.empty() && lane.border.leaves.empty();
      })) {
    return absl::InternalError("scratch is held by nobody");
  }
  return absl::OkStatus();
}

}  // namespace lamina::core
