// SPDX-License-Identifier: Apache-2.0
//
// Tails: which sequence has which tail: where K and V are INT8, the slots of bf16 that hold its
// open block. They belong to a device's memory, and outlive epochs as that does.
//
// A sequence that ran when its epoch ended has its tail as it was, for when it joins again. Who
// joins otherwise takes a free one, and if there is none, that of a sequence which has not joined.
// So a coordinator may count on a tail until somebody who had none has joined there.
//
// A tail that goes to a spill tier, or comes from there, is nobody else's until it has been written
// or read, although its sequence leaves meanwhile.
//
// Threading: one thread at a time.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "plan/step_plan.h"

namespace lamina::plan {

class Tails {
 public:
  explicit Tails(uint32_t count);

  uint32_t count() const { return count_; }

  // No sequence has joined.
  void BeginEpoch();
  // The tail of a sequence that joins; nothing: so many have joined. Requires: it has not.
  std::optional<uint32_t> Join(SequenceId id);
  // It has left. Requires: it has joined.
  void Leave(SequenceId id);

  // A move to the tier or from it, of a number of its own, has begun with the tail of a sequence.
  // Requires: it has joined; a move of this number is over.
  void BeginMove(SequenceId id, uint64_t move);
  // Nothing, if the move has no tail. One that never ends does so with its epoch.
  void EndMove(uint64_t move);

 private:
  struct Moving {
    uint32_t tail = 0;
    bool left = false;  // Its sequence has.
  };

  uint32_t count_ = 0;
  std::vector<uint32_t> free_;
  std::map<SequenceId, uint32_t> joined_;
  std::map<SequenceId, uint32_t> kept_;  // Sequences that had joined in an epoch before.
  std::map<uint64_t, Moving> moving_;    // By move, of which a tail has one.
};

}  // namespace lamina::plan
