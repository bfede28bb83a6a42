// SPDX-License-Identifier: Apache-2.0
//
// WorkMeter: where the time of one data thread goes, by part and by peer. The thread counts, others
// read the counters and, when it is wanted, the timeline.
//
// Links go by the peer's name, so that they go on counting when an epoch numbers nodes anew.
//
// Threading: EndInterval() and its argument from the data thread; all else from any other.
// Cost: of EndInterval() a reading of the clock and an addition; no lock, no allocation.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/clock.h"
#include "telemetry/fastest_exchange.h"
#include "telemetry/fetched_bandwidth.h"
#include "telemetry/trace_ring.h"
#include "telemetry/work_kind.h"

namespace lamina::telemetry {

// Adds to a counter that one thread writes and others read.
inline void AddTo(std::atomic<uint64_t>& counter, uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

// Counts this node's puts to one peer, and its waits for it. Written by the data thread.
struct LinkCounters {
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> puts{0};
  std::atomic<uint64_t> nanos{0};     // In puts.
  std::atomic<uint64_t> failures{0};  // Puts that ended with an error.
  std::atomic<uint64_t> waited_nanos{0};
  FastestExchange exchange;
  FetchedBandwidth fetched;
};

// What a reader sees of them.
struct LinkCount {
  std::string peer;
  uint64_t bytes = 0;
  uint64_t puts = 0;
  double seconds = 0;
  uint64_t failures = 0;
  double waited_seconds = 0;
  double exchange_seconds = 0;                // FastestExchange; 0: there was none.
  double exchange_bytes_per_second = 0;       // From FastestExchange, too.
  double fetched_bytes_per_second_least = 0;  // FetchedBandwidth; 0: not known.
  double fetched_bytes_per_second_most = 0;   // From FetchedBandwidth, too,
  double fetched_unbounded_seconds = 0;       // and this.
  friend bool operator==(const LinkCount&, const LinkCount&) = default;
};

class WorkMeter {
 public:
  // --- The data thread ---

  // What has been done since `event.start`: adds the time to event.part, records it when a timeline
  // is wanted, and returns the time now.
  Nanos EndInterval(TraceEvent event) {
    event.end = RealClock().Now();
    return EndIntervalAt(event);
  }

  // Ends the interval at `event.end`: for work of a device, which is told of later.
  Nanos EndIntervalAt(const TraceEvent& event) {
    AddTo(nanos_[static_cast<size_t>(event.part)], static_cast<uint64_t>(event.end - event.start));
    if (ring_.on()) {
      ring_.Record(event);
    }
    return event.end;
  }

  // --- Others ---

  // The counters of a peer; they stay where they are.
  LinkCounters* Link(const std::string& peer);

  double Seconds(WorkKind part) const {
    return ToSeconds(
        static_cast<Nanos>(nanos_[static_cast<size_t>(part)].load(std::memory_order_relaxed)));
  }
  std::vector<LinkCount> Links() const;
  TraceRing& ring() { return ring_; }

 private:
  std::array<std::atomic<uint64_t>, kWorkParts> nanos_{};
  TraceRing ring_;
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<LinkCounters>> links_;  // Guarded by mutex_.
};

}  // namespace lamina::telemetry
