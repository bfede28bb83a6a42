// SPDX-License-Identifier: Apache-2.0
#include "telemetry/outbox_spans.h"

#include <algorithm>
#include <optional>

namespace lamina::telemetry {

void OutboxSpans::Add(Outbox* outbox, uint16_t peer) {
  if (outbox != nullptr) {
    peers_.push_back({.outbox = outbox, .index = peer});
    outbox->NoteTimes(noted_);
  }
}

void OutboxSpans::Record() {
  const bool on = ring_.on();
  const bool begins = on && !noted_;
  if (on != noted_) {
    noted_ = on;
    for (const Peer& peer : peers_) {
      peer.outbox->NoteTimes(on);
    }
  }
  if (!on) {
    return;
  }
  for (const Peer& peer : peers_) {
    while (const std::optional<OutboxTimes> times = peer.outbox->TakeTimes()) {
      if (!begins) {  // What an earlier timeline has left.
        RecordSend(*times, peer.index);
      }
    }
  }
}

void OutboxSpans::RecordSend(const OutboxTimes& times, uint16_t peer) {
  TraceEvent event{.start = times.unraised,
                   .end = times.posted,
                   .part = WorkKind::kPost,
                   .lane = static_cast<uint8_t>(times.word - first_word_),
                   .peer = peer,
                   .layer = static_cast<uint16_t>(layout_.LayerOf(times.value)),
                   .step = static_cast<uint32_t>(layout_.StepOf(times.value)),
                   .bytes = static_cast<uint32_t>(std::min<size_t>(times.bytes, UINT32_MAX))};
  ring_.Record(event);
  event.part = WorkKind::kInFlight;
  event.start = times.posted;
  event.end = times.complete;
  ring_.Record(event);
}

}  // namespace lamina::telemetry
