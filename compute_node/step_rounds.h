// SPDX-License-Identifier: Apache-2.0
//
// StepRounds: when lanes begin their steps where weights come slice by slice. Lanes whose steps
// begin together go through the slices together, so that a slice comes once for all of them
// (HybridServe's zig-zag). Elsewhere each lane begins as soon as it has a plan.
//
//   lane 0   slice 0 1 2 ... head |   next round
//   lane 1   slice 0 1 2 ... head |   lane 2, whose plan came during the round, begins here
//
// A round begins when no step is under way. It waits a little for the lanes of the last one, whose
// next plans are on their way: a lane that missed it would have all slices come for itself.
//
// Threading: the data thread.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/clock.h"
#include "compute_node/lane.h"

namespace lamina::compute_node {

class StepRounds {
 public:
  // How long a round waits for lanes of the last one that have no plan.
  static constexpr Nanos kLinger = Millis(4);

  // `together`: lanes begin in rounds.
  StepRounds(bool together, size_t lanes) : together_(together), last_(lanes, false) {}

  // Whether lanes that are idle and have plans may begin.
  bool MayBegin(absl::Span<const Lane> lanes, Nanos now);

  // Notes which lanes have begun since MayBegin() allowed it.
  void Began(absl::Span<const Lane> lanes);

  // How long the thread may sleep where no lane is under way: at most `most`.
  Nanos Nap(absl::Span<const Lane> lanes, Nanos now, Nanos most) const;

  // The first slice that a step under way has still to run; 0 where there is none.
  static uint32_t Earliest(absl::Span<const Lane> lanes);

 private:
  const bool together_;
  std::vector<bool> last_;  // [lanes] whether it was part of the last round.
  Nanos ended_ = -1;        // When that was seen to have ended; -1: not yet.
};

}  // namespace lamina::compute_node
