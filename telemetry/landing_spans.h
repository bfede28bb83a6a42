// SPDX-License-Identifier: Apache-2.0
//
// LandingSpans: what takes rows of peers the last step into a device's memory, as events of its
// timeline: from the host's raised word until the device's word was raised. While no timeline is
// recorded nothing is noted.
//
// Threading: the data thread. Allocation: Add() alone.
// Ownership: the ring outlives this; the landings, until Clear().

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/landings.h"
#include "plan/window_layout.h"
#include "telemetry/trace_ring.h"

namespace lamina::telemetry {

class LandingSpans {
 public:
  LandingSpans(TraceRing& ring, plan::WindowLayout layout)
      : ring_(ring), layout_(std::move(layout)) {}

  // Null: nothing lands, and there is nothing to tell.
  void Watch(Landings* landings);
  // The peer raises the word of lane i at first_word + i. Words of nobody are left out.
  void Add(uint16_t peer, uint32_t first_word) {
    peers_.push_back({.first_word = first_word, .index = peer});
  }
  void Clear();

  // Records what has landed since.
  void Record();

 private:
  struct Peer {
    uint32_t first_word = 0;
    uint16_t index = 0;
  };

  void RecordLanding(const LandingTimes& times);

  TraceRing& ring_;
  const plan::WindowLayout layout_;
  Landings* landings_ = nullptr;
  std::vector<Peer> peers_;
  bool noted_ = false;  // Times are noted.
};

}  // namespace lamina::telemetry
