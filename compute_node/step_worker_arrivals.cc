// SPDX-License-Identifier: Apache-2.0
//
// What lanes wait for: taken when it has come, awaited when no lane is ready.

#include <algorithm>

#include "common/clock.h"
#include "common/status_macros.h"
#include "compute_node/step_worker.h"
#include "control/blame.h"

namespace lamina::compute_node {
namespace {

// While lanes are away and others idle, plans of the idle ones are looked for this often.
constexpr Nanos kPlanPoll = Micros(200);

// A step with prompt chunks may keep another compute node busy for minutes (a large model on few
// cores): it is waited for as long again for each so many of its prompt tokens.
constexpr Nanos kPromptTokens = 64;

// How long a lane waits for another compute node, which may itself wait for a memory node, for
// `patience`: so memory nodes are given up on first.
Nanos ReplicaPatience(const Lane& lane, Nanos patience) {
  Nanos prompt_tokens = 0;
  for (const plan::PrefillChunk& chunk : lane.plan.chunks) {
    prompt_tokens += chunk.tokens;
  }
  return 2 * patience + 2 * patience * prompt_tokens / kPromptTokens;
}

}  // namespace

// Takes everything that has arrived; lanes that wait for nothing more become ready, or idle.
absl::Status StepWorker::TakeArrivals() {
  for (Lane& lane : lanes_) {
    if (lane.phase == LanePhase::kElsewhere) {
      LAMINA_RETURN_IF_ERROR(TakeTokens(lane));
    } else if (lane.phase == LanePhase::kAhead) {
      LAMINA_ASSIGN_OR_RETURN(const bool got_on, device_.HasGotOn(lane));
      if (got_on) {
        SetReady(lane);
      }
    } else if (lane.phase == LanePhase::kAway) {
      LAMINA_RETURN_IF_ERROR(TakeOutputs(lane));
    }
  }
  return absl::OkStatus();
}

// Ends the step here, if its tokens have come.
absl::Status StepWorker::TakeTokens(Lane& lane) {
  LAMINA_ASSIGN_OR_RETURN(const bool taken, replicas_.TakeTokens(lane));
  if (taken) {
    reporter_.ReportResult(
        {.epoch = lane.plan.epoch, .lane = lane.plan.lane, .step = lane.plan.step});
    EndStep(lane);
  }
  return absl::OkStatus();
}

absl::Status StepWorker::TakeOutputs(Lane& lane) {
  if (lane.reducing) {
    LAMINA_ASSIGN_OR_RETURN(const bool summed, shards_.Take(lane));
    if (summed) {
      lane.reducing = false;
      ++lane.op;
      SetReady(lane);
    }
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const bool replied, memory_.Take(lane));
  LAMINA_ASSIGN_OR_RETURN(const bool context, replicas_.TakeContext(lane));
  if (replied && context) {
    executor_.AttentionToDevice(lane.slice - 1, 0, lane.decode_rows, lane.buffers);
    SetReady(lane);
  }
  return absl::OkStatus();
}

absl::Status StepWorker::WaitForArrivals() {
  awaited_.clear();
  conditions_.clear();
  Nanos deadline = INT64_MAX;
  bool any_idle = false;
  PeerId late = 0;
  Nanos late_patience = 0;
  // What has been appended to awaited_: since the lane went away, for so long.
  const auto expect_for = [&](const Lane& lane, Nanos patience) {
    for (size_t i = conditions_.size(); i < awaited_.size(); ++i) {
      conditions_.push_back({.word = awaited_[i].word, .at_least = awaited_[i].value});
      if (lane.away_since + patience < deadline) {
        deadline = lane.away_since + patience;
        late = awaited_[i].peer;
        late_patience = patience;
      }
    }
  };
  const Nanos patience = options_.peer_deadline;
  for (const Lane& lane : lanes_) {
    any_idle = any_idle || (lane.phase == LanePhase::kIdle &&
                            context_.schedule.TakesPart(options_.node, lane.index));
    if (lane.phase == LanePhase::kElsewhere) {
      awaited_.push_back(replicas_.TokenSignal(lane));
      expect_for(lane, ReplicaPatience(lane, patience));
    } else if (lane.phase == LanePhase::kAway && lane.reducing) {
      awaited_.push_back(shards_.NextSignal(lane));
      expect_for(lane, ReplicaPatience(lane, patience));
    } else if (lane.phase == LanePhase::kAway) {
      if (replicas_.awaits_context(lane)) {
        awaited_.push_back(replicas_.ContextSignal(lane));
        expect_for(lane, ReplicaPatience(lane, patience));
      }
      memory_.AppendAwaited(lane, awaited_);
      expect_for(lane, replicas_.awaits_context(lane) ? ReplicaPatience(lane, patience) : patience);
    }
  }
  const Nanos poll = RealClock().Now() + (any_idle ? kPlanPoll : ThreadBeat::kNapMost);
  const absl::StatusOr<size_t> ready = transport_.Wait(
      region_, conditions_, {.deadline = std::min(deadline, poll), .abort = &abort_});
  if (!awaited_.empty()) {
    // The thread has stood still for this one, or for one of several of which nothing came.
    const PeerId peer = awaited_[ready.ok() ? *ready : 0].peer;
    peers_.CountWait(peer, laps_.Lap({.part = peer >= telemetry::TraceEvent::kMemoryPeer
                                                  ? telemetry::WorkPart::kWaitAttention
                                                  : telemetry::WorkPart::kWaitReplica,
                                      .peer = peer}));
  }
  if (ready.ok()) {
    return absl::OkStatus();
  }
  if (absl::IsDeadlineExceeded(ready.status()) && RealClock().Now() < deadline) {
    return absl::OkStatus();
  }
  if (absl::IsDeadlineExceeded(ready.status())) {
    return peers_.NothingFrom(late, late_patience);
  }
  return awaited_.empty() ? ready.status() : control::Blame(ready.status(), peers_.Name(late));
}

}  // namespace lamina::compute_node
