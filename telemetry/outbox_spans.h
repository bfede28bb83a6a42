// SPDX-License-Identifier: Apache-2.0
//
// OutboxSpans: what the outboxes of a node tell of their sends, as events of its timeline: the time
// from a device's raised word until its put was posted, and from then until it was complete. While
// no timeline is recorded outboxes note nothing.
//
// Threading: the data thread. Allocation: Add() alone.
// Ownership: the ring outlives this; an outbox, until Clear().

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/outbox.h"
#include "plan/window_layout.h"
#include "telemetry/trace_ring.h"

namespace lamina::telemetry {

class OutboxSpans {
 public:
  // The own words of lanes in the windows of peers begin with `first_word`.
  OutboxSpans(TraceRing& ring, plan::WindowLayout layout, uint32_t first_word)
      : ring_(ring), layout_(std::move(layout)), first_word_(first_word) {}

  // Null: the peer's windows are shared with it, and there is nothing to tell.
  void Add(Outbox* outbox, uint16_t peer);
  void Clear() { peers_.clear(); }

  // Records what has become complete since.
  void Record();

 private:
  struct Peer {
    Outbox* outbox = nullptr;
    uint16_t index = 0;
  };

  void RecordSend(const OutboxTimes& times, uint16_t peer);

  TraceRing& ring_;
  const plan::WindowLayout layout_;
  const uint32_t first_word_;
  std::vector<Peer> peers_;
  bool noted_ = false;  // Outboxes note times.
};

}  // namespace lamina::telemetry
