// SPDX-License-Identifier: Apache-2.0
//
// SourceLoop: serves a list of sources on the data thread, one bounded piece at a time.
//
// All signals that sources wait for are awaited at once. Of several sources with work the one goes
// first that has had the fewest turns for its share (stride scheduling): a source of share 1 gets
// one turn for three of a source of share 3, and none waits longer than for the others' shares. A
// source that had no work does not save up turns.
//
// Threading:  the data thread. Allocation: none per turn.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "memory_node/node_epoch.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "transport/transport.h"

namespace lamina::memory_node {

class SourceLoop {
 public:
  // References must outlive this.
  SourceLoop(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter,
             const std::vector<WorkSource*>& sources);

  // Takes turns until the abort word is raised (OK) or something is wrong: the error of a source or
  // of the feed.
  absl::Status Run();

 private:
  struct Entry {
    WorkSource* source = nullptr;
    uint64_t pass = 0;  // Turns that it has had, each kStride / share; the least goes first.
    size_t first = 0;   // Where its conditions begin in conditions_.
  };

  absl::Status Turn();
  // Asks sources what they wait for, in order, up to one whose time has come: those behind it come
  // later anyway. Returns that one, or null. `until` becomes the earliest of their times.
  Entry* Ask(Nanos now, Nanos& until);
  absl::Status Serve(size_t condition);
  absl::Status NothingHappened();
  // The source takes a turn.
  void Charge(Entry& entry);

  const NodeEpoch& epoch_;
  StepFeed& feed_;
  UnitMeter& meter_;
  std::vector<Entry> entries_;  // By pass.
  size_t asked_ = 0;            // So many of them have said what they wait for.
  uint64_t pass_ = 0;           // That of the last turn.
  std::vector<transport::SignalCondition> conditions_;
};

}  // namespace lamina::memory_node
