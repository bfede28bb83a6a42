// SPDX-License-Identifier: Apache-2.0
//
// TraceRing: what a data thread did lately, for the timeline of `lamina trace`. The thread writes,
// another one reads on demand; neither waits for the other.
//
// Threading: Record() from one thread; the rest from another one.
// Cost: off, one relaxed load; on, four stores to a ring that stays in memory. Nothing is allocated
// by Record().
// Limits: kEvents; the oldest are written over.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "telemetry/work_kind.h"

namespace lamina::telemetry {

struct TraceEvent {
  static constexpr uint16_t kNoPeer = 0xffff;
  static constexpr uint16_t kMemoryPeer = 0x8000;  // Added to the index of a memory node.
  static constexpr uint8_t kNoLane = 255;

  Nanos start = 0;
  Nanos end = 0;
  WorkKind part = WorkKind::kDense;
  uint8_t lane = kNoLane;
  uint16_t peer = kNoPeer;
  uint16_t layer = 0;  // The layer whose attention the unit is.
  uint16_t rows = 0;
  uint32_t step = 0;
  uint32_t bytes = 0;

  // Four words, as the ring and the control plane carry it.
  static constexpr int kWords = 4;
  std::array<uint64_t, kWords> ToWords() const;
  static TraceEvent FromWords(const uint64_t* words);
};

class TraceRing {
 public:
  static constexpr uint64_t kEvents = 1 << 17;

  bool on() const { return on_.load(std::memory_order_relaxed); }

  // The writer. An event that ends after the time that Start() was given turns tracing off.
  void Record(const TraceEvent& event);

  // From now on until `until` or Stop(). Takes 4 MiB at the first call.
  void Start(Nanos until);
  void Stop();

  // What was recorded since Start(), oldest first. `dropped`: how many of it were written over.
  std::vector<TraceEvent> Take(uint64_t& dropped) const;

 private:
  using Word = std::atomic<uint64_t>;

  std::atomic<bool> on_{false};
  std::atomic<Nanos> until_{0};
  std::atomic<uint64_t> head_{0};  // Events ever written.
  std::atomic<Word*> words_{nullptr};
  std::unique_ptr<Word[]> owned_;  // The control side's.
  uint64_t began_ = 0;             // head_ at Start().
};

}  // namespace lamina::telemetry
