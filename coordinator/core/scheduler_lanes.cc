// SPDX-License-Identifier: Apache-2.0
//
// Over how many lanes the running sequences are spread, and which of them change lanes.
//
// A sequence changes lanes between steps: it sits out until every planned step with its row is
// done, then its next row is planned in the other lane. Nodes keep one table for all lanes, so
// nothing is sent for it: K and V, slots and tokens stay where they are. In the same way a sequence
// leaves its prefill lane once its prompt is done.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "coordinator/core/scheduler_internal.h"

namespace lamina::core {
namespace {

// It would have ended before the move pays.
constexpr uint32_t kTokensLeftMin = 8;

}  // namespace

void Scheduler::SetLaneCosts(const cost::LaneCosts& costs) { impl_->lane_costs = costs; }

void Scheduler::SetLinkCosts(const cost::LinkCosts& costs) { impl_->link_costs = costs; }

void Scheduler::SetBandwidths(const std::vector<double>& bytes_per_second) {
  std::vector<MemoryNodeShare>& nodes = impl_->options.memory_nodes;
  LAMINA_CHECK(bytes_per_second.size() == nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].bandwidth_bytes_per_second = bytes_per_second[i];
  }
}

void Scheduler::HoldOneLane(std::string why) {
  if (impl_->one_lane_why == why) {
    return;
  }
  impl_->one_lane_why = std::move(why);
  impl_->lane_count = {};
  impl_->lanes_active = 1;
}

const LaneCount& Scheduler::lane_count() const { return impl_->lane_count; }

void Scheduler::Impl::UpdateLaneCount() {
  if (!one_lane_why.empty()) {
    lane_count = {.lanes = 1, .why = absl::StrCat("1, ", one_lane_why)};
    lanes_active = 1;
    return;
  }
  cost::LaneWork work;
  const size_t rows = Running() + waiting.size() + draining.size();
  work.rows = static_cast<uint32_t>(std::min<size_t>(rows, options.running_max));
  for (const Lane& lane : lanes) {
    work.context_tokens += lane.context_tokens_all;
  }
  // Without work the choice stays, so that status tells of the last.
  if (work.rows == 0 && lanes_active > 0) {
    return;
  }
  lane_count = ChooseLanes({.lanes_max = options.lanes,
                            .automatic = options.lanes_auto,
                            .rows_max = std::min(options.rows_max, options.step_tokens_max),
                            .fixed_why = options.lanes_why},
                           lane_costs, work, lanes_active);
  lanes_active = lane_count.lanes;
}

// What PickLane() weighs, sequences counted where they are going.
std::vector<LaneLoad> Scheduler::Impl::LaneLoads() const {
  std::vector<LaneLoad> loads(lanes.size());
  for (const Lane& lane : lanes) {
    for (const Sequence* sequence : lane.running) {
      LaneLoad& load = loads[sequence->next_lane];
      ++load.rows;
      load.context_tokens += kv->TokensOf(sequence->request.id);
    }
  }
  for (uint32_t i = 0; i < loads.size(); ++i) {
    loads[i].has_room =
        i < lanes_active && loads[i].rows < std::min(options.rows_max, options.step_tokens_max);
  }
  return loads;
}

// From a prefill lane it must.
bool Scheduler::Impl::MayMove(const Sequence& sequence) const {
  if (IsPrefillLane(sequence.lane)) {
    return sequence.state == SequenceState::kDecoding && sequence.next_lane == sequence.lane;
  }
  return sequence.state == SequenceState::kDecoding && sequence.next_lane == sequence.lane &&
         !sequence.starving &&
         sequence.planned_tokens + kTokensLeftMin <= sequence.request.tokens_max;
}

void Scheduler::Impl::BalanceLanes() {
  UpdateLaneCount();
  std::vector<LaneLoad> loads = LaneLoads();
  bool any_moves = false;
  for (Lane& lane : lanes) {
    for (Sequence* sequence : lane.running) {
      if (sequence->lane >= lanes_active && MayMove(*sequence)) {
        if (const auto target = PickLane(loads); target.has_value()) {
          sequence->next_lane = *target;
          loads = LaneLoads();
        }
      }
      any_moves = any_moves || sequence->next_lane != sequence->lane;
    }
  }
  if (!any_moves) {
    EvenOut(loads);
  }
  for (uint32_t lane = 0; lane < lanes.size(); ++lane) {
    FinishMoves(lane);
  }
}

// Moves one sequence from the lane with the most work to the one with the least, if that is worth
// it.
void Scheduler::Impl::EvenOut(const std::vector<LaneLoad>& loads) {
  const auto less = [](const LaneLoad& a, const LaneLoad& b) { return WorkOf(a) < WorkOf(b); };
  const auto end = loads.begin() + lanes_active;
  const auto most = std::max_element(loads.begin(), end, less);
  const auto least = std::min_element(loads.begin(), end, less);
  if (!least->has_room) {
    return;
  }
  const uint64_t difference = WorkOf(*most) - WorkOf(*least);
  Sequence* best = nullptr;
  uint64_t best_left = difference;
  for (Sequence* sequence : lanes[static_cast<size_t>(most - loads.begin())].running) {
    const uint64_t work = WorkOf({.rows = 1, .context_tokens = kv->TokensOf(sequence->request.id)});
    if (!MayMove(*sequence) || work >= difference) {
      continue;
    }
    const uint64_t left = 2 * work > difference ? 2 * work - difference : difference - 2 * work;
    if (left < best_left) {
      best = sequence;
      best_left = left;
    }
  }
  // The longest lane has to become shorter by an eighth.
  if (best != nullptr && (difference - best_left) / 2 * 8 >= WorkOf(*most)) {
    best->next_lane = static_cast<uint32_t>(least - loads.begin());
  }
}

// Sequences whose last step in the lane is done go on where they are wanted.
void Scheduler::Impl::FinishMoves(uint32_t index) {
  Lane& from = lanes[index];
  const std::vector<Sequence*> running = from.running;
  for (Sequence* sequence : running) {
    if (sequence->next_lane == index || from.step_done < sequence->last_step) {
      continue;
    }
    std::erase(from.running, sequence);
    TakeContext(*sequence, from);
    Lane& to = lanes[sequence->next_lane];
    sequence->lane = sequence->next_lane;
    sequence->last_step = 0;
    to.running.insert(std::upper_bound(to.running.begin(), to.running.end(), sequence, before),
                      sequence);
    AddContext(*sequence, to);
    ++counters.lane_moves;
  }
}

}  // namespace lamina::core
