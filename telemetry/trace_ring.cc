// SPDX-License-Identifier: Apache-2.0
#include "telemetry/trace_ring.h"

#include <algorithm>

namespace lamina::telemetry {

std::array<uint64_t, TraceEvent::kWords> TraceEvent::ToWords() const {
  return {static_cast<uint64_t>(start), static_cast<uint64_t>(end),
          static_cast<uint64_t>(part) | uint64_t{lane} << 8 | uint64_t{peer} << 16 |
              uint64_t{layer} << 32 | uint64_t{rows} << 48,
          uint64_t{step} | uint64_t{bytes} << 32};
}

TraceEvent TraceEvent::FromWords(const uint64_t* words) {
  TraceEvent event{.start = static_cast<Nanos>(words[0]), .end = static_cast<Nanos>(words[1])};
  const auto part = static_cast<uint8_t>(words[2]);
  event.part = static_cast<WorkKind>(std::min<uint8_t>(part, kTraceKinds - 1));
  event.lane = static_cast<uint8_t>(words[2] >> 8);
  event.peer = static_cast<uint16_t>(words[2] >> 16);
  event.layer = static_cast<uint16_t>(words[2] >> 32);
  event.rows = static_cast<uint16_t>(words[2] >> 48);
  event.step = static_cast<uint32_t>(words[3]);
  event.bytes = static_cast<uint32_t>(words[3] >> 32);
  return event;
}

void TraceRing::Record(const TraceEvent& event) {
  if (!on_.load(std::memory_order_acquire)) {  // Whoever sees it on sees what Start() stored.
    return;
  }
  if (event.end > until_.load(std::memory_order_relaxed)) {
    on_.store(false, std::memory_order_relaxed);
    return;
  }
  Word* const words = words_.load(std::memory_order_acquire);
  const uint64_t head = head_.load(std::memory_order_relaxed);
  Word* const slot = words + (head % kEvents) * TraceEvent::kWords;
  const auto values = event.ToWords();
  // Release: who reads one of these words sees the head at which it was written.
  for (int i = 0; i < TraceEvent::kWords; ++i) {
    slot[i].store(values[static_cast<size_t>(i)], std::memory_order_release);
  }
  head_.store(head + 1, std::memory_order_release);
}

void TraceRing::Start(Nanos until) {
  if (owned_ == nullptr) {
    owned_ = std::make_unique<Word[]>(kEvents * TraceEvent::kWords);
    words_.store(owned_.get(), std::memory_order_release);
  }
  began_ = head_.load(std::memory_order_acquire);
  until_.store(until, std::memory_order_relaxed);
  on_.store(true, std::memory_order_release);
}

void TraceRing::Stop() { on_.store(false, std::memory_order_relaxed); }

std::vector<TraceEvent> TraceRing::Take(uint64_t& dropped) const {
  const uint64_t head = head_.load(std::memory_order_acquire);
  const uint64_t first = std::max(began_, head > kEvents ? head - kEvents : 0);
  std::vector<TraceEvent> events;
  events.reserve(head - first);
  for (uint64_t i = first; i < head; ++i) {
    uint64_t words[TraceEvent::kWords];
    for (int w = 0; w < TraceEvent::kWords; ++w) {
      words[w] = owned_[(i % kEvents) * TraceEvent::kWords + static_cast<uint64_t>(w)].load(
          std::memory_order_acquire);
    }
    events.push_back(TraceEvent::FromWords(words));
  }
  // The writer may have gone on: what it wrote over meanwhile, or is writing over, is no event.
  const uint64_t later = head_.load(std::memory_order_relaxed);
  const uint64_t whole = later + 1 > kEvents ? later + 1 - kEvents : 0;
  const uint64_t lost = std::min<uint64_t>(whole > first ? whole - first : 0, events.size());
  events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(lost));
  dropped = first + lost - began_;
  return events;
}

}  // namespace lamina::telemetry
