// SPDX-License-Identifier: Apache-2.0
//
// What plans spill: what nodes check of it, and when they have done it. Disks fail at random.

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tests/sim/sim_world.h"

namespace lamina::sim {
namespace {

constexpr double kFails = 0.1;
constexpr double kFoundInTime = 0.5;
constexpr Nanos kMoveMax = Micros(400);

// Tokens with these slots, by the node that they are on.
std::map<uint32_t, SimPlaces> ByNode(absl::Span<const uint32_t> slots,
                                     absl::Span<const uint32_t> nodes) {
  std::map<uint32_t, SimPlaces> places;
  for (size_t token = 0; token < slots.size(); ++token) {
    places[nodes[token]].slots.push_back(slots[token]);
  }
  return places;
}

}  // namespace

void SimWorld::StartSpills(const plan::StepPlan& plan) {
  for (const plan::SpillOut& spill : plan.spills_out) {
    const bool is_copy = spill.sequence == 0;
    ++(is_copy ? report_.reach.copied : report_.reach.spilled);
    report_.reach.spilled_apart += nodes_->NodesAt(spill.spill).size() > 1;
    StartSpill(spill.spill, sim_.bug == PlantedBug::kSpillNotAwaited ||
                                (is_copy && sim_.bug == PlantedBug::kCopyNotAwaited));
  }
  for (const plan::SpillIn& spill : plan.spills_in) {
    if (!nodes_->WasReadAhead(plan, spill.spill)) {
      StartRead(spill);
    }
  }
}

void SimWorld::StartRead(const plan::SpillIn& spill) {
  const bool is_copy = nodes_->IsCopy(spill.spill);
  ++(is_copy ? report_.reach.copies_read : report_.reach.restored);
  report_.reach.copies_read_in_part += is_copy && spill.skip > 0;
  StartSpill(spill.spill, sim_.bug == PlantedBug::kRestoreNotAwaited ||
                              (is_copy && sim_.bug == PlantedBug::kCopyReadNotAwaited));
}

// Nodes may find the plan while the step before it is under way, or when that is over.
void SimWorld::ReadAhead(const plan::StepPlan& plan) {
  if (plan.spills_in.empty() || !spill_random_.Chance(kFoundInTime)) {
    return;
  }
  nodes_->ReadAhead(plan);
  for (const plan::SpillIn& spill : plan.spills_in) {
    if (nodes_->WasReadAhead(plan, spill.spill)) {
      ++report_.reach.read_ahead;
      StartRead(spill);
    }
  }
}

// With `early` the nodes say that it is done when it begins.
void SimWorld::StartSpill(uint64_t spill, bool early) {
  const std::vector<uint32_t> nodes = nodes_->NodesAt(spill);
  for (const uint32_t node : nodes) {
    StartMove(spill, node,
              early || (sim_.bug == PlantedBug::kSpanNotAwaited && node != nodes.front()));
  }
}

void SimWorld::StartMove(uint64_t spill, uint32_t share, bool early) {
  const uint64_t epoch = epoch_;
  const uint32_t nodes = workload_.options.memory_nodes.front().spill.nodes;
  std::vector<bool> ok;
  for (uint32_t node = 0; node < nodes; ++node) {
    ok.push_back(!spill_random_.Chance(kFails));
  }
  const bool all = std::find(ok.begin(), ok.end(), false) == ok.end();
  report_.reach.spills_failed += !all;
  const auto delay = [this](Nanos most) {
    return 1 + static_cast<Nanos>(spill_random_.Below(static_cast<uint64_t>(most)));
  };
  const Nanos end = now_ + delay(kMoveMax);
  At(end, [this, spill, share, epoch, all] {
    if (epoch == epoch_) {
      nodes_->EndSpill(spill, share, all);
    }
  });
  for (const bool its : ok) {
    // Each node has done its part by itself; the last one when all is done.
    const Nanos done = (early ? now_ : end) + delay(workload_.faults.message_delay_max);
    At(done, [this, report = plan::SpillReport{.epoch = epoch, .spill = spill, .ok = its}] {
      scheduler_.OnSpilled(report);
    });
  }
}

// It leaves with the plan; what it has in slots, and with INT8 in its tail, are all tokens that it
// has had as inputs.
void SimNodes::SpillOut(const plan::StepPlan& plan, const plan::SpillOut& spill) {
  if (spill.sequence == 0) {
    return CopyOut(spill);
  }
  const Entry* entry = Find(plan, spill.sequence);
  if (entry == nullptr) {
    return;
  }
  if (spill.tokens != entry->slots.size() || entry->released > 0 ||
      std::find(plan.leaves.begin(), plan.leaves.end(),
                plan::SequenceLeave{.id = spill.sequence}) == plan.leaves.end()) {
    return Fail(absl::StrCat("sequence ", spill.sequence, " is spilled in part, or stays"));
  }
  for (auto& [node, places] : PlacesOf(*entry, 0, spill.tokens, spill.spill)) {
    tier_.BeginOut(spill.spill, node, std::move(places), slots_[node]);
  }
}

// Where so many tokens lie, by node. Begins the move of the tail, if some of them are there.
std::map<uint32_t, SimPlaces> SimNodes::PlacesOf(const Entry& entry, uint32_t first,
                                                 uint32_t tokens, uint64_t spill) {
  const uint32_t open = entry.tail == nullptr ? 0 : OpenOf(entry.join.path, tokens);
  std::map<uint32_t, SimPlaces> places =
      ByNode(absl::MakeConstSpan(entry.slots).subspan(first, tokens - open),
             absl::MakeConstSpan(entry.nodes).subspan(first, tokens - open));
  if (open > 0) {
    tails_[entry.join.memory_node].owners.BeginMove(entry.join.id, spill);
    SimPlaces& last = places[entry.join.memory_node];
    last.tail = entry.tail;
    last.open = open;
  }
  return places;
}

// Blocks of the prefix cache, which stay.
void SimNodes::CopyOut(const plan::SpillOut& spill) {
  std::vector<uint32_t> slots;
  for (const Extent& extent : spill.slots) {
    for (uint32_t i = 0; i < extent.tokens; ++i) {
      slots.push_back(extent.first_slot + i);
    }
  }
  if (slots.size() != spill.tokens || spill.tokens != options_.copied_run_tokens) {
    return Fail(absl::StrCat("copy ", spill.spill, " is of ", slots.size(), " slots"));
  }
  copies_.insert(spill.spill);
  tier_.BeginOut(spill.spill, spill.memory_node, {.slots = slots}, slots_[spill.memory_node]);
}

void SimNodes::ReadAhead(const plan::StepPlan& plan) {
  if (options_.span_tokens > 0) {
    return;  // Spans are read with their step.
  }
  for (const plan::SpillIn& spill : plan.spills_in) {
    const auto join = std::find_if(plan.joins.begin(), plan.joins.end(),
                                   [&](const auto& one) { return one.id == spill.sequence; });
    if (join == plan.joins.end() || join->memory_node >= slots_.size()) {
      return Fail(absl::StrCat("spill ", spill.spill, " is read for nobody who joins"));
    }
    const uint32_t node = join->memory_node;
    std::vector<uint32_t> slots;
    for (const plan::SlotAllocation& allocation : plan.allocations) {
      for (uint32_t i = 0; allocation.sequence == join->id && i < allocation.extent.tokens; ++i) {
        slots.push_back(allocation.extent.first_slot + i);
      }
    }
    if (spill.first + spill.tokens >= slots.size()) {
      return Fail(absl::StrCat("sequence ", join->id, " is to be read back whole"));
    }
    const uint32_t open = OpenOf(join->path, spill.tokens);
    SimPlaces places{.open = open};
    if (open > 0) {
      plan::Tails& owners = tails_[node].owners;
      const bool is_here = table_.contains(join->id) || ahead_tails_.contains(join->id);
      const std::optional<uint32_t> tail = is_here ? std::nullopt : owners.Join(join->id);
      if (!tail) {
        continue;  // It waits for its step.
      }
      owners.BeginMove(join->id, spill.spill);
      ahead_tails_[join->id] = *tail;
      places.tail = TailOf(node, *tail);
    }
    const auto first = slots.begin() + spill.first;
    slots = std::vector<uint32_t>(first, first + (spill.tokens - open));
    for (const uint32_t slot : slots) {
      if (slot >= slots_[node].size() || !slots_[node][slot].owners.empty() ||
          slots_[node][slot].moves > 0) {
        return Fail(absl::StrCat("slot ", slot, " of node ", node, " is read into for sequence ",
                                 join->id, " while another one holds it"));
      }
      ahead_slots_.emplace(join->id, slot);
    }
    ahead_.emplace(plan.lane, plan.step, spill.spill);
    places.slots = std::move(slots);
    tier_.BeginIn(spill.spill, node, spill.skip, std::move(places), slots_[node]);
  }
}

void SimNodes::SpillIn(const plan::StepPlan& plan, const plan::SpillIn& spill) {
  if (WasReadAhead(plan, spill.spill)) {
    return;
  }
  const Entry* entry = Find(plan, spill.sequence);
  if (entry == nullptr) {
    return;
  }
  if (spill.first + spill.tokens >= entry->slots.size()) {
    return Fail(absl::StrCat("sequence ", spill.sequence, " is to be read back whole"));
  }
  for (auto& [node, places] : PlacesOf(*entry, spill.first, spill.tokens, spill.spill)) {
    tier_.BeginIn(spill.spill, node, spill.skip, std::move(places), slots_[node]);
  }
}

}  // namespace lamina::sim
