// SPDX-License-Identifier: Apache-2.0
//
// LaneBalance: over how many lanes the running sequences are spread, and which of them change
// lanes.
//
// A sequence changes lanes between steps: it sits out until every planned step with its row is
// done, then its next row is planned in the other lane. Nodes keep one table for all lanes, so
// nothing is sent for it: K and V, slots and tokens stay where they are. In the same way a sequence
// leaves its prefill lane once its prompt is done. Two that change places do so each by itself.
//
// Where lanes have several paths (lane_paths.h) all lanes are in use, and sequences are evened out
// among the lanes of each path. Where lanes are bound to nodes (lane_homes.h), among those of each
// node.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/core/fetch_planning.h"
#include "coordinator/core/lane_count.h"
#include "coordinator/core/lane_packing.h"
#include "coordinator/core/lane_paths.h"
#include "coordinator/core/lanes.h"
#include "coordinator/core/planned_steps.h"
#include "coordinator/core/scheduler_options.h"
#include "cost/layer_seconds.h"
#include "plan/attention_paths.h"

namespace lamina::core {

class LaneBalance {
 public:
  LaneBalance(const SchedulerOptions& options, Lanes& lanes, const LanePaths& paths,
              const PlannedSteps& steps, const SequenceKv& kv)
      : options_(options),
        lanes_(lanes),
        paths_(paths),
        steps_(steps),
        kv_(kv),
        packing_(options.strategies.lane_packing()) {}

  void SetCosts(const cost::LaneCosts& costs) { costs_ = costs; }
  const cost::LaneCosts& costs() const { return costs_; }
  // The first so many lanes are in use from now on, `why` in words; 0: as options and times say.
  void HoldLanes(uint32_t lanes, std::string why);

  // Decides on the number of lanes for what runs and `waits`, and moves sequences; `rates` were
  // measured of late. `between_steps`: the path of each beam that is to join a lane with its next
  // step.
  void Balance(size_t waits, const FetchRates& rates = {},
               absl::Span<const plan::AttentionPath> between_steps = {});

  // The load of each lane, with room for a row in those that take newcomers.
  std::vector<LaneLoad> Loads() const;
  // These loads, with room only in lanes that a row of the path may come into.
  std::vector<LaneLoad> LoadsFor(plan::AttentionPath path) const;
  bool HasRoomForRow(uint32_t lane) const;

  const LaneCount& count() const { return count_; }
  uint64_t moves() const { return moves_; }  // Since construction.

 private:
  uint32_t rows_max() const { return std::min(options_.rows_max, options_.step_tokens_max); }
  void UpdateCount(size_t waits, absl::Span<const plan::AttentionPath> between_steps);
  bool MayMove(const Sequence& sequence) const;
  void LeaveLane(uint32_t lane);
  void EvenOut(plan::AttentionPath path, uint32_t group);
  void Exchange(plan::AttentionPath path, uint32_t group, const FetchRates& rates);
  PackedRow RowOf(const Sequence& sequence) const;
  void FinishMoves(uint32_t lane);

  const SchedulerOptions& options_;
  Lanes& lanes_;
  const LanePaths& paths_;
  const PlannedSteps& steps_;
  const SequenceKv& kv_;
  const std::unique_ptr<LanePacking> packing_;
  cost::LaneCosts costs_;
  LaneCount count_;
  uint32_t held_ = 0;     // As HoldLanes() was told; 0: the number is chosen.
  std::string held_why_;  // And why.
  uint32_t active_ = 1;   // The first so many lanes take newcomers; the others get none.
  uint64_t moves_ = 0;
};

}  // namespace lamina::core
