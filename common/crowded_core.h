// SPDX-License-Identifier: Apache-2.0
//
// CrowdedCore: whether other threads want the processors that a thread waits on. sched_yield() does
// not tell, and does not give them up either: the kernel switches to others only where they have
// had less of the processor. So a thread that waits should sleep there, and where nobody else wants
// the processor it should not: yielding costs nothing then, and reacts soonest (ADR 0201).
//
// The kernel counts how often it stopped a thread for another: a few times a second on a machine
// that has a processor for each busy thread, hundreds of times on one that has not.
//
// Threading: an object serves one thread.

#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "common/clock.h"

namespace lamina {

class CrowdedCore {
 public:
  // `now` does not go back. `stops` says how often the thread has been stopped so far; it is called
  // once in 20 ms at most.
  bool Is(Nanos now, absl::FunctionRef<int64_t()> stops);

 private:
  Nanos looked_at_ = 0;
  int64_t stops_ = 0;
  Nanos crowded_until_ = 0;
};

// Whether the calling thread's is, `now` being RealClock()'s. Cost: a system call in 20 ms, else
// two comparisons.
bool CoreIsCrowded(Nanos now);

// How long a wait that begins now, after a short spin, yields before it sleeps. Yielding reacts
// within a microsecond when the core is free, and costs a system call each time. It lasts longer
// than a slice of dense layers, the usual pause between two messages: a sleeper takes 50 to 200 us
// to wake where its processor is a guest's and has halted. Where others want the core it is a few
// system calls, for a peer that answers at once. Cost: that of CoreIsCrowded().
Nanos YieldTime(Nanos now);

}  // namespace lamina
