// SPDX-License-Identifier: Apache-2.0
//
// StepStarts: when lanes begin their steps. A lane begins as soon as it has a plan; where weights
// come slice by slice, lanes begin in rounds.
//
// Threading: the data thread.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/clock.h"
#include "compute_node/lane.h"

namespace lamina::compute_node {

class StepStarts {
 public:
  virtual ~StepStarts() = default;

  // Whether lanes that are idle and have plans may begin.
  virtual bool MayBegin(absl::Span<const Lane> lanes, Nanos now) = 0;

  // Notes which lanes have begun since MayBegin() allowed it.
  virtual void Began(absl::Span<const Lane> lanes) = 0;

  // How long the thread may sleep where no lane is under way: at most `most`.
  virtual Nanos Nap(absl::Span<const Lane> lanes, Nanos now, Nanos most) const = 0;

  // The first slice that a step under way has still to run; 0 where there is none.
  static uint32_t Earliest(absl::Span<const Lane> lanes);
};

class StepsAtOnce final : public StepStarts {
 public:
  bool MayBegin(absl::Span<const Lane> /*lanes*/, Nanos /*now*/) override { return true; }
  void Began(absl::Span<const Lane> /*lanes*/) override {}
  Nanos Nap(absl::Span<const Lane> /*lanes*/, Nanos /*now*/, Nanos most) const override {
    return most;
  }
};

// Lanes whose steps begin together go through the slices together, so that a slice comes once for
// all of them (HybridServe's zig-zag).
//
//   lane 0   slice 0 1 2 ... head |   next round
//   lane 1   slice 0 1 2 ... head |   lane 2, whose plan came during the round, begins here
//
// A round begins when no step is under way. It waits a little for the lanes of the last one, whose
// next plans are on their way: a lane that missed it would have all slices come for itself.
class StepRounds final : public StepStarts {
 public:
  // How long a round waits for lanes of the last one that have no plan.
  static constexpr Nanos kLinger = Millis(4);

  explicit StepRounds(size_t lanes) : last_(lanes, false) {}

  bool MayBegin(absl::Span<const Lane> lanes, Nanos now) override;
  void Began(absl::Span<const Lane> lanes) override;
  Nanos Nap(absl::Span<const Lane> lanes, Nanos now, Nanos most) const override;

 private:
  std::vector<bool> last_;  // [lanes] whether it was part of the last round.
  Nanos ended_ = -1;        // When that was seen to have ended; -1: not yet.
};

// Rounds where `weights_come`, slice by slice and in order.
std::unique_ptr<StepStarts> MakeStepStarts(bool weights_come, size_t lanes);

}  // namespace lamina::compute_node
