// SPDX-License-Identifier: Apache-2.0
//
// The end of a step: lanes take turns at the LM head, one step's at a time.

#include <utility>

#include "common/status_macros.h"
#include "compute_node/step_worker.h"

namespace lamina::compute_node {

// The next chunk of the LM head; behind the last one, tells everybody, and the step ends.
absl::Status StepWorker::RunTail(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const StepTail::Outcome outcome, tail_.Run(lane));
  if (outcome == StepTail::Outcome::kOccupied) {
    lane.head_due = true;
    return absl::OkStatus();
  }
  if (outcome == StepTail::Outcome::kMore) {
    SetReady(lane);
    return absl::OkStatus();
  }
  WakeHeads();
  plan::StepResult result = tail_.TakeResult();
  LAMINA_RETURN_IF_ERROR(replicas_.SendTokens(lane, result));
  reporter_.ReportResult(std::move(result));
  EndStep(lane);
  return absl::OkStatus();
}

// Lanes that came to the head meanwhile take their turns again. Had they kept them, one whose turn
// is always first, as that of the oldest visit on a stage is, would have kept the head from its
// end.
void StepWorker::WakeHeads() {
  for (Lane& lane : lanes_) {
    if (std::exchange(lane.head_due, false)) {
      turns_.SetReady(lane.index);
    }
  }
}

void StepWorker::EndStep(Lane& lane) {
  ForgetPrefilled(lane);
  turns_.End(lane.index);
  lane.phase = LanePhase::kIdle;
}

// A node for prompts alone is not told of what becomes of them.
void StepWorker::ForgetPrefilled(const Lane& lane) {
  if (!context_.schedule.IsPrefillLane(lane.index) || !context_.Runs(lane)) {
    return;
  }
  for (const ChunkRows& chunk : lane.chunks) {
    if (!chunk.plan.last) {
      continue;
    }
    for (const plan::SequenceId child : sequences_.Find(chunk.plan.sequence)->children) {
      const Sequence* fork = sequences_.Find(child);
      if (fork != nullptr && fork->join.parent == chunk.plan.sequence) {
        sequences_.Erase(child);
      }
    }
    sequences_.Erase(chunk.plan.sequence);
  }
}

}  // namespace lamina::compute_node
