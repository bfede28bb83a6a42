// SPDX-License-Identifier: Apache-2.0
#include "compute_node/lane_wait.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/status_macros.h"
#include "common/thread_beat.h"
#include "compute_node/prompt_work.h"

namespace lamina::compute_node {
namespace {

// While lanes wait and others idle, plans of the idle ones are looked for this often.
constexpr Nanos kPlanPoll = Micros(200);

// Prompts of all lanes that run: a peer may be busy with any of them.
PromptWork RunningPrompts(absl::Span<const Lane> lanes) {
  PromptWork running;
  for (const Lane& lane : lanes) {
    if (lane.phase != LanePhase::kIdle) {
      running += lane.prompts;
    }
  }
  return running;
}

void Pause(Nanos pause) {
  if (pause == 0) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
  }
}

}  // namespace

absl::Status LaneWait::Run(absl::Span<const Lane> lanes, const transport::AbortWord& abort) {
  ExpectSignals(lanes);
  Nanos nap = ThreadBeat::kNapMost;
  std::optional<Nanos> pause;  // The shortest pause of paths that have to be polled.
  for (const Lane& lane : lanes) {
    if (lane.phase == LanePhase::kIdle && context_.schedule.TakesPart(context_.node, lane.index)) {
      nap = std::min(nap, kPlanPoll);
    }
    if (lane.phase != LanePhase::kWaiting) {
      continue;
    }
    if (lane.awaits.Has(Awaited::kWeights)) {
      nap = std::clamp(lane.weights_look_again - RealClock().Now(), Nanos{0}, nap);
    }
    if (lane.awaits.Has(Awaited::kAttention)) {
      if (const auto path_pause = paths_.PollPause(lane)) {
        pause = std::min(*path_pause, pause.value_or(*path_pause));
      }
    }
  }
  if (!pause.has_value()) {
    return signals_.Wait(nap, abort);
  }
  // A lane that is polled must not hide that another waits for a peer in vain.
  LAMINA_RETURN_IF_ERROR(signals_.CheckDeadline());
  Pause(std::min(*pause, nap));
  return absl::OkStatus();
}

// What came during a long slice may be here and not taken yet: one look is not enough.
absl::Status LaneWait::WhileOthersRun(absl::Span<const Lane> lanes, Nanos now) {
  if (now < look_at_) {
    return absl::OkStatus();
  }
  look_at_ = now + ThreadBeat::kNapMost;
  ExpectSignals(lanes);
  LAMINA_RETURN_IF_ERROR(signals_.CheckPeers());
  const absl::Status late = signals_.CheckDeadline();
  return std::exchange(found_late_, !late.ok()) ? late : absl::OkStatus();
}

void LaneWait::ExpectSignals(absl::Span<const Lane> lanes) {
  signals_.Clear();
  const PromptWork prompts = RunningPrompts(lanes);
  const Nanos for_outputs = OutputsTimeout(prompts, context_.peer_deadline);
  const Nanos for_nodes =
      ReplicaTimeout(prompts, std::ssize(context_.config.layers), context_.peer_deadline);
  const Nanos for_sums = ReplicaTimeout(prompts, /*layers=*/1, context_.peer_deadline);
  for (const Lane& lane : lanes) {
    if (lane.phase == LanePhase::kWaiting) {
      ExpectSignalsOf(lane, for_outputs, for_sums, for_nodes);
    }
  }
}

void LaneWait::ExpectSignalsOf(const Lane& lane, Nanos for_outputs, Nanos for_sums,
                               Nanos for_nodes) {
  if (lane.awaits.Has(Awaited::kTokens)) {
    signals_.signals().push_back(replicas_.TokenSignal(lane));
    signals_.Expect(lane.away_since, for_nodes);
  }
  if (lane.awaits.Has(Awaited::kSum)) {
    signals_.signals().push_back(shards_.NextSignal(lane));
    signals_.Expect(lane.away_since, for_sums);
  }
  if (lane.awaits.Has(Awaited::kContext)) {
    signals_.signals().push_back(replicas_.ContextSignal(lane));
    signals_.Expect(lane.away_since, for_nodes);
    for_outputs = for_nodes;  // They cannot come before the node that sends the context has sent q.
  }
  if (lane.awaits.Has(Awaited::kAttention)) {
    const size_t first = signals_.signals().size();
    paths_.AppendAwaited(lane, signals_.signals());
    const auto awaits = absl::MakeConstSpan(signals_.signals()).subspan(first);
    signals_.Expect(quiet_.Since(lane.index, lane.away_since, awaits, RealClock().Now()),
                    for_outputs);
  }
}

}  // namespace lamina::compute_node
