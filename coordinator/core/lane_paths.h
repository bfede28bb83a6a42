// SPDX-License-Identifier: Apache-2.0
//
// LanePaths: which lane a sequence may run in, where an epoch prepares several paths of attention.
//
// A lane has one path at a time: that of the sequences in it. One without any takes the path of
// whoever joins it first, so that no lane idles for its path's sake. Sequences change lanes only
// between lanes of their path, or into an empty one.
//
// Nobody starves: newcomers join in service order (admission.h), so when the first one has no lane
// of its path, nobody joins before it, and none changes lanes but for its sake: an empty lane is
// its. If there is none, the lane with the least work whose sequences have another lane of their
// path gives these to that one as far as it has room, and becomes empty; else the first lane whose
// sequences have all ended is the newcomer's. It waits at most until those that run have generated
// their last tokens. Beams run in no lane between two of their steps, and are in no queue: they
// await a lane, too, as long as none has their path.
//
// Threading: one thread.   Determinism: same calls, same answers.   Cost: O(lanes) for each answer.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/core/lanes.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/sequence_life.h"
#include "plan/attention_paths.h"

namespace lamina::core {

class LanePaths {
 public:
  // References must outlive this.
  LanePaths(const Lanes& lanes, const SequenceLife& life) : lanes_(lanes), life_(life) {}

  // Whether a sequence of the path may come into the lane: it is empty, or of that path.
  bool Takes(uint32_t lane, plan::AttentionPath path) const {
    return lanes_.PathOf(lane).value_or(path) == path;
  }
  // Takes the room from the loads of lanes that a sequence of the path may not come into.
  void Restrict(plan::AttentionPath path, std::vector<LaneLoad>& loads) const;

  // The path of the first in service order that does not run, if no lane has that path.
  std::optional<plan::AttentionPath> Awaited() const;
  // A lane whose sequences are to go on in others, so that it becomes empty for who awaits one.
  std::optional<uint32_t> LaneToEmpty() const;

  // The paths of the lanes in use, each once, in the order of their first lanes.
  std::vector<plan::AttentionPath> InUse() const;
  // Whether somebody awaits a lane of another path than lanes have: who is Awaited(), or beams of
  // one of these paths, which are between two steps.
  bool AnyAwaits(absl::Span<const plan::AttentionPath> between_steps) const;
  // Whether the lanes in use, and who awaits one, have several paths.
  bool several(absl::Span<const plan::AttentionPath> between_steps = {}) const {
    return InUse().size() + (AnyAwaits(between_steps) ? 1 : 0) > 1;
  }

 private:
  bool HasLane(plan::AttentionPath path) const;

  const Lanes& lanes_;
  const SequenceLife& life_;
};

}  // namespace lamina::core
