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

// Attention of a chunk to a million tokens may keep a memory node of few cores busy for as long: it
// is waited for as long again for each so many pairs of a row and a token. A layer of 4,096
// features has 1.1 GFLOP/s for them in a minute.
constexpr Nanos kPairs = Nanos{64} << 16;

// How long a lane waits for outputs of attention. A memory node may be busy for any of the lanes.
Nanos OutputsTimeout(absl::Span<const Lane> lanes, Nanos timeout) {
  Nanos pairs = 0;
  for (const Lane& lane : lanes) {
    if (lane.phase == LanePhase::kIdle) {
      continue;
    }
    for (const plan::PrefillChunk& chunk : lane.plan.chunks) {
      pairs += Nanos{chunk.tokens} * (chunk.first_token + chunk.tokens);
    }
  }
  return timeout + timeout * (pairs / kPairs);
}

// How long a lane waits for another compute node, which may itself wait for outputs: so memory
// nodes are given up on first.
Nanos ReplicaTimeout(const Lane& lane, Nanos timeout, Nanos for_outputs) {
  Nanos prompt_tokens = 0;
  for (const plan::PrefillChunk& chunk : lane.plan.chunks) {
    prompt_tokens += chunk.tokens;
  }
  return 2 * for_outputs + 2 * timeout * prompt_tokens / kPromptTokens;
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
  const Nanos for_outputs = OutputsTimeout(lanes, context_.peer_deadline);
  Nanos nap = ThreadBeat::kNapMost;
  std::optional<Nanos> pause;  // The shortest pause of paths that have to be polled.
  for (const Lane& lane : lanes) {
    if (lane.phase == LanePhase::kIdle && context_.schedule.TakesPart(context_.node, lane.index)) {
      nap = std::min(nap, kPlanPoll);
    }
    if (lane.phase != LanePhase::kWaiting) {
      continue;
    }
    ExpectSignalsOf(lane, for_outputs);
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

void LaneWait::ExpectSignalsOf(const Lane& lane, Nanos for_outputs) {
  const Nanos for_nodes = ReplicaTimeout(lane, context_.peer_deadline, for_outputs);
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
