// SPDX-License-Identifier: Apache-2.0
//
// SliceOrder: which of the ready lanes of a compute node runs its next slice. A strategy is a rank
// of lanes: the least is next, and of equal ones the lane that has been ready for longest.
//
// Threading: one thread.   Cost: linear in lanes.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lamina::plan {

class SliceOrder {
 public:
  explicit SliceOrder(uint32_t lanes) : lanes_(lanes) {}
  virtual ~SliceOrder() = default;
  SliceOrder(const SliceOrder&) = delete;
  SliceOrder& operator=(const SliceOrder&) = delete;

  // Takes part from now on. A lane that was idle starts level with the one furthest behind, so that
  // it neither runs alone until it has caught up nor waits.
  void Begin(uint32_t lane);
  // Its next slice is the first here behind one that ran elsewhere, or of a step.
  void BeginVisit(uint32_t lane) { lanes_[lane].visit = ++now_; }
  // Has a slice to run. Requires: Begin() before.
  void SetReady(uint32_t lane);
  // Takes the next lane out of those that are ready; none if none is.
  std::optional<uint32_t> Next();
  // Takes no part any more, until it begins again.
  void End(uint32_t lane);

 protected:
  struct LaneProgress {
    bool taking_part = false;
    uint64_t ready_since = 0;  // 0 is not ready.
    uint64_t units = 0;        // Slices that it has run here, or was credited with.
    uint64_t visit = 0;        // When its way through the layers here began.
  };

  virtual uint64_t RankOf(const LaneProgress& lane) const = 0;

 private:
  bool IsBefore(const LaneProgress& a, const LaneProgress& b) const;

  std::vector<LaneProgress> lanes_;
  uint64_t now_ = 0;
};

// The lane that has run the fewest slices here. In the balanced schedule that is the schedule's own
// order; a ready lane waits for at most two slices of each other lane.
class FewestSlicesFirst final : public SliceOrder {
 public:
  using SliceOrder::SliceOrder;

 private:
  uint64_t RankOf(const LaneProgress& lane) const override { return lane.units; }
};

// The lane whose visit, its way through the layers of this stage, began first. Taking turns, all
// lanes would go through the stage together, and leave the next one idle until then. The oldest
// visit waits for nothing but the slice that runs.
class OldestVisitFirst final : public SliceOrder {
 public:
  using SliceOrder::SliceOrder;

 private:
  uint64_t RankOf(const LaneProgress& lane) const override { return lane.visit; }
};

}  // namespace lamina::plan
