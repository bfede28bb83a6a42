// SPDX-License-Identifier: Apache-2.0
//
// GrammarBudget: the processor time that one sequence may take in its grammar. An ambiguous grammar
// may take ever longer with each byte, and the thread of a compute node that waits for it holds up
// everybody's requests.
//
// Whether it is exhausted depends on the machine and differs from run to run, unlike all else that
// decides on tokens. So it is far beyond what any form takes that is not made to be slow.
//
// Threading: one thread at a time.

#pragma once

#include <ctime>

#include "common/clock.h"

namespace lamina::model {

// Processor time of this thread, so that a busy machine changes nothing.
inline Nanos ThreadTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return Seconds(now.tv_sec) + now.tv_nsec;
}

class GrammarBudget {
 public:
  static constexpr Nanos kCallMax = Millis(200);
  static constexpr Nanos kInAll = Seconds(5);
  static constexpr Nanos kPerToken = Millis(1);  // More in all for each token.

  // A call took so long.
  void Spend(Nanos call) {
    left_ -= call;
    exhausted_ = exhausted_ || call > kCallMax || left_ < 0;
  }
  void AddToken() { left_ += kPerToken; }
  // Once it is, it stays so.
  bool exhausted() const { return exhausted_; }

 private:
  Nanos left_ = kInAll;
  bool exhausted_ = false;
};

}  // namespace lamina::model
