// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/lane_balance.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "common/extent.h"
#include "plan/slot_kinds.h"

namespace lamina::core {
namespace {

// It would have ended before the move pays.
constexpr uint32_t kTokensLeftMin = 8;

// Consecutive tokens that have their slots on one node, from the first one on.
struct LyingTokens {
  uint32_t first = 0;
  absl::Span<const Extent> extents;
};

// Counts them by what they are held as, and which of them have places on the compute node.
void AddSlots(uint32_t activation_share, const LyingTokens& lying, const plan::ResidentTokens& kept,
              PackedRow& row) {
  const plan::SlotKinds kinds(activation_share);
  const auto activations_in = [&kinds](uint32_t first_slot, uint32_t slots) {
    return kinds.ActivationsOf(first_slot + slots) - kinds.ActivationsOf(first_slot);
  };
  uint32_t token = lying.first;  // The first one of the extent.
  for (const Extent& extent : lying.extents) {
    const uint32_t end = token + extent.tokens;
    const uint32_t first = std::clamp(kept.first, token, end);
    const uint32_t placed = std::clamp(kept.first + kept.tokens, first, end) - first;
    const uint32_t activations = activations_in(extent.first_slot, extent.tokens);
    const uint32_t resident = activations_in(extent.first_slot + (first - token), placed);
    row.activations += activations - resident;
    row.kv += extent.tokens - activations;
    row.resident += resident;
    token = end;
  }
}

}  // namespace

void LaneBalance::HoldLanes(uint32_t lanes, std::string why) {
  if (lanes == 0) {
    why.clear();
  }
  if (held_ == lanes && held_why_ == why) {
    return;
  }
  held_ = lanes;
  held_why_ = std::move(why);
  count_ = {};
  active_ = std::max(1u, lanes);
}

void LaneBalance::UpdateCount(size_t waits, absl::Span<const plan::AttentionPath> between_steps) {
  if (held_ > 0) {
    count_ = {.lanes = held_, .why = absl::StrCat(held_, ", ", held_why_)};
    active_ = held_;
    return;
  }
  cost::LaneWork work;
  work.rows = static_cast<uint32_t>(
      std::min<size_t>(lanes_.running() + waits + between_steps.size(), options_.running_max));
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    work.context_tokens += lanes_[lane].context_tokens_all;
  }
  // Without work the choice stays, so that status tells of the last.
  if (work.rows == 0 && active_ > 0) {
    return;
  }
  count_ = ChooseLanes({.lanes_max = options_.lanes,
                        .automatic = options_.lanes_auto,
                        .rows_max = rows_max(),
                        .fixed_why = options_.lanes_why},
                       costs_, work, active_);
  active_ = count_.lanes;
  if (active_ < options_.lanes && paths_.several(between_steps)) {
    count_ = {.lanes = options_.lanes,
              .why = absl::StrCat(options_.lanes, ", for sequences of several policies run")};
    active_ = options_.lanes;
  }
}

std::vector<LaneLoad> LaneBalance::Loads() const {
  std::vector<LaneLoad> loads = lanes_.loads();
  for (uint32_t i = 0; i < loads.size(); ++i) {
    loads[i].has_room = i < active_ && loads[i].rows < rows_max();
  }
  return loads;
}

std::vector<LaneLoad> LaneBalance::LoadsFor(plan::AttentionPath path) const {
  std::vector<LaneLoad> loads = Loads();
  paths_.Restrict(path, loads);
  return loads;
}

bool LaneBalance::HasRoomForRow(uint32_t lane) const {
  return (lanes_.IsPrefill(lane) || lane < active_) && lanes_.loads()[lane].rows < rows_max();
}

// From a prefill lane it must.
bool LaneBalance::MayMove(const Sequence& sequence) const {
  if (sequence.state != SequenceState::kDecoding || sequence.moving()) {
    return false;
  }
  return lanes_.IsPrefill(sequence.lane) ||
         (!sequence.starving &&
          sequence.planned_tokens + kTokensLeftMin <= sequence.request.tokens_max);
}

void LaneBalance::Balance(size_t waits, const FetchRates& rates,
                          absl::Span<const plan::AttentionPath> between_steps) {
  UpdateCount(waits, between_steps);
  for (uint32_t lane = active_; lane < lanes_.size(); ++lane) {
    LeaveLane(lane);
  }
  if (const auto lane = paths_.LaneToEmpty(); lane.has_value()) {
    LeaveLane(*lane);
  }
  if (lanes_.moving() == 0 && !paths_.AnyAwaits(between_steps)) {
    for (const plan::AttentionPath path : paths_.InUse()) {
      for (uint32_t group = 0; group < lanes_.homes().groups(); ++group) {
        EvenOut(path, group);
        if (lanes_.moving() == 0) {
          Exchange(path, group, rates);
        }
      }
    }
  }
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    FinishMoves(lane);
  }
}

// Sequences of a lane that is given up, or of a prefill lane, are wanted in another one.
void LaneBalance::LeaveLane(uint32_t lane) {
  const std::optional<plan::AttentionPath> path = lanes_.PathOf(lane);
  if (!path.has_value()) {
    return;
  }
  const auto pick = [&] {
    std::vector<LaneLoad> loads = LoadsFor(*path);
    loads[lane].has_room = false;
    const LaneHomes& homes = lanes_.homes();
    for (uint32_t other = 0; other < loads.size(); ++other) {
      loads[other].has_room &= homes.GroupOf(other) == homes.GroupOf(lane);
    }
    return PickLane(loads);
  };
  std::optional<uint32_t> target = pick();
  for (Sequence* sequence : lanes_[lane].running) {
    if (!target) {
      return;
    }
    if (MayMove(*sequence)) {
      lanes_.Aim(*sequence, *target);
      target = pick();
    }
  }
}

// Moves one sequence of the path from the group's lane with the most work to the one with the
// least, if that is worth it: the longest lane has to become shorter by an eighth.
void LaneBalance::EvenOut(plan::AttentionPath path, uint32_t group) {
  std::vector<LaneLoad> loads = LoadsFor(path);
  loads.resize(active_);
  const auto less = [](const LaneLoad& a, const LaneLoad& b) { return WorkOf(a) < WorkOf(b); };
  auto most = loads.end();
  auto least = loads.end();
  for (auto lane = loads.begin(); lane != loads.end(); ++lane) {
    const auto index = static_cast<uint32_t>(lane - loads.begin());
    if (lanes_.homes().GroupOf(index) != group) {
      continue;
    }
    if (lanes_.PathOf(index) == path && (most == loads.end() || less(*most, *lane))) {
      most = lane;
    }
    if (paths_.Takes(index, path) && (least == loads.end() || less(*lane, *least))) {
      least = lane;
    }
  }
  if (most == loads.end() || least == loads.end()) {
    return;
  }
  const uint64_t difference = WorkOf(*most) - WorkOf(*least);
  const auto pays = [&](uint64_t left) { return (difference - left) / 2 * 8 >= WorkOf(*most); };
  if (!least->has_room || difference == 0 || !pays(0)) {
    return;
  }
  Sequence* best = nullptr;
  uint64_t best_left = difference;
  for (Sequence* sequence : lanes_[static_cast<uint32_t>(most - loads.begin())].running) {
    const uint64_t work = WorkOf({.rows = 1, .context_tokens = sequence->seen_tokens()});
    if (!MayMove(*sequence) || work >= difference) {
      continue;
    }
    const uint64_t left = 2 * work > difference ? 2 * work - difference : difference - 2 * work;
    if (left < best_left) {
      best = sequence;
      best_left = left;
    }
  }
  if (best != nullptr && pays(best_left)) {
    lanes_.Aim(*best, static_cast<uint32_t>(least - loads.begin()));
  }
}

// What of a sequence is held as which kind follows from its slots, and which activations stay from
// its places. One that has come into its lane has a row there before it may change again, so that
// everyone gets on whatever a strategy says.
PackedRow LaneBalance::RowOf(const Sequence& sequence) const {
  PackedRow row{.may_move = MayMove(sequence) && sequence.last_step > 0};
  if (options_.span_tokens == 0) {
    const OpenSpan& span = *sequence.held->last;
    AddSlots(options_.memory_nodes[KvDirectory::NodeOf(span)].activation_share,
             {.first = sequence.held->released, .extents = KvDirectory::ExtentsOf(span)},
             sequence.resident, row);
    return row;
  }
  uint32_t index = 0;
  kv_.VisitSpans(sequence.request.id, [&](const SequenceKv::Span& span) {
    AddSlots(options_.memory_nodes[span.node].activation_share,
             {.first = span.first + (span.tokens - span.slots),
              .extents = kv_.directory().ExtentsOf(HeldSpan(sequence.request.id, index++))},
             sequence.resident, row);
  });
  return row;
}

// Has rows of the path change places between the group's lanes. Requires: none of them moves.
void LaneBalance::Exchange(plan::AttentionPath path, uint32_t group, const FetchRates& rates) {
  std::vector<std::vector<Sequence*>> rows;
  const auto count = [&] {
    std::vector<PackedLane> lanes;
    rows.clear();
    for (uint32_t lane = 0; lane < active_; ++lane) {
      if (lanes_.PathOf(lane) != path || lanes_.homes().GroupOf(lane) != group) {
        continue;
      }
      PackedLane& packed = lanes.emplace_back();
      std::vector<Sequence*>& sequences = rows.emplace_back();
      for (Sequence* sequence : lanes_[lane].running) {
        if (sequence->state == SequenceState::kDecoding) {
          packed.push_back(RowOf(*sequence));
          sequences.push_back(sequence);
        }
      }
    }
    return lanes;
  };
  for (const LaneExchange& exchange : packing_->Choose({.path = path, .lanes = count}, rates)) {
    Sequence& one = *rows[exchange.lane][exchange.row];
    Sequence& other = *rows[exchange.other_lane][exchange.other_row];
    LAMINA_CHECK(!one.moving() && !other.moving());
    const uint32_t lane = one.lane;
    lanes_.Aim(one, other.lane);
    lanes_.Aim(other, lane);
  }
}

// Sequences whose last step in the lane is done go on where they are wanted.
void LaneBalance::FinishMoves(uint32_t lane) {
  const SequenceQueue moving = lanes_[lane].moving;
  for (Sequence* sequence : moving) {
    if (steps_.done(lane) < sequence->last_step) {
      continue;
    }
    lanes_.Move(*sequence, kv_);
    sequence->last_step = 0;
    sequence->last_work = 0;
    ++moves_;
  }
}

}  // namespace lamina::core
