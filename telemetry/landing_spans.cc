// SPDX-License-Identifier: Apache-2.0
#include "telemetry/landing_spans.h"

#include <optional>

namespace lamina::telemetry {

void LandingSpans::Watch(Landings* landings) {
  landings_ = landings;
  if (landings_ != nullptr) {
    landings_->NoteTimes(noted_);
  }
}

void LandingSpans::Clear() {
  landings_ = nullptr;
  peers_.clear();
}

void LandingSpans::Record() {
  if (landings_ == nullptr) {
    return;
  }
  const bool on = ring_.on();
  const bool begins = on && !noted_;
  if (on != noted_) {
    noted_ = on;
    landings_->NoteTimes(on);
  }
  if (!on) {
    return;
  }
  while (const std::optional<LandingTimes> times = landings_->TakeTimes()) {
    if (!begins) {  // What an earlier timeline has left.
      RecordLanding(*times);
    }
  }
}

void LandingSpans::RecordLanding(const LandingTimes& times) {
  for (const Peer& peer : peers_) {
    const uint32_t lane = times.word - peer.first_word;
    if (times.word >= peer.first_word && lane < layout_.shape().lanes) {
      ring_.Record({.start = times.unraised,
                    .end = times.landed,
                    .part = WorkKind::kLand,
                    .lane = static_cast<uint8_t>(lane),
                    .peer = peer.index,
                    .layer = static_cast<uint16_t>(layout_.LayerOf(times.value)),
                    .step = static_cast<uint32_t>(layout_.StepOf(times.value))});
      return;
    }
  }
}

}  // namespace lamina::telemetry
