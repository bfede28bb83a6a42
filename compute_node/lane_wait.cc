// SPDX-License-Identifier: Apache-2.0
#include "compute_node/lane_wait.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "common/clock.h"
#include "common/status_macros.h"
#include "common/thread_beat.h"

namespace lamina::compute_node {
namespace {

// While lanes wait and others idle, plans of the idle ones are looked for this often.
constexpr Nanos kPlanPoll = Micros(200);

// A step with prompt chunks may keep another compute node busy for minutes (a large model on few
// cores): it is waited for as long again for each so many of its prompt tokens.
constexpr Nanos kPromptTokens = 64;

// How long a lane waits for another compute node, which may itself wait for a memory node, for
// `timeout`: so memory nodes are given up on first.
Nanos ReplicaTimeout(const Lane& lane, Nanos timeout) {
  Nanos prompt_tokens = 0;
  for (const plan::PrefillChunk& chunk : lane.plan.chunks) {
    prompt_tokens += chunk.tokens;
  }
  return 2 * timeout + 2 * timeout * prompt_tokens / kPromptTokens;
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
  signals_.Clear();
  Nanos nap = ThreadBeat::kNapMost;
  std::optional<Nanos> pause;  // The shortest pause of paths that have to be polled.
  for (const Lane& lane : lanes) {
    if (lane.phase == LanePhase::kIdle && context_.schedule.TakesPart(context_.node, lane.index)) {
      nap = std::min(nap, kPlanPoll);
    }
    if (lane.phase != LanePhase::kWaiting) {
      continue;
    }
    ExpectSignalsOf(lane);
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

void LaneWait::ExpectSignalsOf(const Lane& lane) {
  const Nanos for_nodes = ReplicaTimeout(lane, context_.peer_deadline);
  Nanos for_outputs = context_.peer_deadline;
  if (lane.awaits.Has(Awaited::kTokens)) {
    signals_.signals().push_back(replicas_.TokenSignal(lane));
    signals_.Expect(lane.away_since, for_nodes);
  }
  if (lane.awaits.Has(Awaited::kSum)) {
    signals_.signals().push_back(shards_.NextSignal(lane));
    signals_.Expect(lane.away_since, for_nodes);
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
