// SPDX-License-Identifier: Apache-2.0
//
// WorkSource: something that a memory node's data thread serves: queries that it answers itself,
// steps that its device serves, a stream of K and V. The SourceLoop asks each source what it waits
// for, and runs it one bounded piece at a time.
//
//   Open()                            before the first turn
//   TakeStep(lane)                    when a step begins: whether this source serves its units
//   AppendAwaited(), LookAt(now)      what it waits for: signals, or a time
//   Serve(condition) or Look()        one piece
//   Close()                           after the last turn, whatever the others said
//
// To add a source: implement this, and add it to the list in attention_worker.cc.
//
// Threading:  the data thread.
// Allocation: none between Open() and Close(), save in TakeStep().

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "memory_node/lane.h"
#include "transport/transport.h"

namespace lamina::memory_node {

class WorkSource {
 public:
  static constexpr Nanos kNever = std::numeric_limits<Nanos>::max();

  virtual ~WorkSource() = default;

  // Errors end the epoch. Close() is called even then.
  virtual absl::Status Open() = 0;
  virtual void Close() = 0;

  // Its part of the turns that sources take while several have work. Constant, at least 1.
  virtual uint32_t share() const = 0;

  // The lane's next step has rows here and begins. True: this source serves its units, and tells
  // the StepFeed when they are done; no source behind it in the list is asked.
  // Errors: those of a device that was given the step.
  virtual absl::StatusOr<bool> TakeStep(Lane& lane) = 0;

  // Appends the signals of the node's own region that it waits for now, first choice first.
  virtual void AppendAwaited(std::vector<transport::SignalCondition>& conditions) = 0;

  // When Look() is due, on RealClock(): a time that has passed if there is work now, kNever if only
  // signals matter.
  virtual Nanos LookAt(Nanos now) const = 0;

  // Runs a bounded piece: the time has come; or the condition that AppendAwaited() appended as
  // number `condition` holds.
  // Errors: kCancelled  the node was stopped. Others end the epoch, and name the peer they blame.
  virtual absl::Status Look() = 0;
  virtual absl::Status Serve(size_t condition) = 0;
};

}  // namespace lamina::memory_node
