// SPDX-License-Identifier: Apache-2.0
//
// FaultLimits: how many faults a cluster answers by a new epoch of the same nodes before something
// else has to be done. A pure state machine; its owner passes the time in.
//
// There are two limits. A few faults with no step done between mean that nothing works. Many
// faults in a minute, with a little progress after each, mean that the cluster spends its time on
// recomputing: it would go on like that for ever, and call it serving.
//
// A node that dies makes its peers fail before its own end is known, so a fault counts by time only
// when kExplainedWithin has passed without a departure on either side of it.
//
// Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <deque>

#include "common/clock.h"

namespace lamina::core {

class FaultLimits {
 public:
  // Two faults may come of one cause that is over; the third says that it is not.
  static constexpr uint32_t kWithoutProgressMax = 3;
  // One in six seconds, when an epoch of long prompts takes seconds to recompute.
  static constexpr uint32_t kInWindowMax = 10;
  static constexpr Nanos kWindow = Seconds(60);
  // A silent node is taken for dead after 10 s; the rest is for its peers' words to arrive.
  static constexpr Nanos kExplainedWithin = Seconds(15);

  // A fault ended this epoch.
  void NoteFault(uint64_t epoch, Nanos now);
  // A member left, by itself or for being silent.
  void NoteDeparture(Nanos now);
  // A step was done.
  void NoteProgress() { without_progress_ = 0; }
  // What came before is answered.
  void Forget();

  bool TooManyWithoutProgress() const { return without_progress_ >= kWithoutProgressMax; }
  bool TooManyInWindow(Nanos now) const { return Unexplained(now) >= kInWindowMax; }
  // Faults of the window that no departure explains any more.
  uint32_t Unexplained(Nanos now) const;

  // The epoch of the first fault since a step was done, and of the first one of the window.
  // Requires: a fault was noted.
  uint64_t first_without_progress() const { return first_without_progress_; }
  uint64_t first_in_window() const { return faults_.front().epoch; }

 private:
  struct Fault {
    uint64_t epoch = 0;
    Nanos at = 0;
  };
  // Faults of the window and of the time before a fault counts; oldest first.
  std::deque<Fault> faults_;
  uint32_t without_progress_ = 0;
  uint64_t first_without_progress_ = 0;
  bool departed_ = false;
  Nanos last_departure_ = 0;
};

}  // namespace lamina::core
