// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/row_slots.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/check.h"

namespace lamina::core {
namespace {

class FullNodeView final : public FullNode {
 public:
  FullNodeView(const Sequence& needy, const NodeResidents& residents, const Spills& spills,
               uint64_t slots_missing)
      : needy_(needy), residents_(residents), spills_(spills), slots_missing_(slots_missing) {}

  uint32_t node() const override { return needy_.node; }
  SlotHolder needy() const override { return needy_.request.id; }
  uint64_t slots_missing() const override { return slots_missing_; }
  cost::SpillRates spill_rates() const override { return spills_.RatesOf(needy_.node); }
  void VisitFromLast(absl::FunctionRef<bool(const Holding&)> visit) const override {
    const SequenceQueue& residents = residents_.On(needy_.node);
    for (auto one = residents.rbegin(); one != residents.rend(); ++one) {
      const Sequence& sequence = **one;
      if (!visit({.holder = sequence.request.id,
                  .slots = sequence.slots - sequence.held->released,
                  .tokens_left =
                      sequence.request.score ? 0 : sequence.request.tokens_max - sequence.tokens(),
                  .has_sampled = !sequence.committed.empty(),
                  .tokens = sequence.held->tokens,
                  .fits_in_tier = spills_.Fits(sequence)})) {
        return;
      }
    }
  }

 private:
  const Sequence& needy_;
  const NodeResidents& residents_;
  const Spills& spills_;
  uint64_t slots_missing_;
};

}  // namespace

RowSlots::RowSlots(const SchedulerOptions& options, SequenceLife& life,
                   const SequenceLife::Places& places, Placement& placement,
                   std::unique_ptr<OutOfSlots> out_of_slots)
    : options_(options),
      life_(life),
      places_(places),
      placement_(placement),
      out_of_slots_(std::move(out_of_slots)) {}

bool RowSlots::Allocate(Sequence& sequence, plan::StepPlan& plan) {
  const bool new_span = places_.kv.RoomInSpan(*sequence.held) == 0;
  const auto has_room = [&] {
    const size_t ahead = places_.residents.StarvingBefore(sequence);
    if (places_.kv.directory().SlotsFree(sequence.node) <= ahead) {
      places_.MakeRoom(sequence.node, ahead + 1);
    }
    return places_.kv.directory().SlotsFree(sequence.node) > ahead;
  };
  // What the cache drops may have slots that others hold still: then it looks for a node once more.
  bool room = !new_span && has_room();
  for (int looks = 0; new_span && !room && looks < 2; ++looks) {
    const uint32_t node = PickNextNode(sequence);
    if (node != sequence.node) {
      places_.residents.SetNode(sequence, node, places_.kv);
    }
    room = has_room();
  }
  if (!room) {
    places_.residents.Starve(sequence);
    MakeRoom(sequence);
    return false;
  }
  places_.residents.Feed(sequence);
  if (new_span) {
    places_.kv.BeginSpan(sequence.request.id, sequence.node);
  }
  const std::optional<HeldExtent> allocated = places_.kv.AppendOne(*sequence.held);
  LAMINA_CHECK(allocated.has_value());
  AddAllocation(sequence, *allocated, plan);
  return true;
}

uint32_t RowSlots::AllocatePrompt(Sequence& sequence, uint32_t end, plan::StepPlan& plan) {
  const plan::SequenceId id = sequence.request.id;
  // The first slot as any row's, then as many as are there for nobody else. With some it goes on
  // without waiting for more.
  const auto goes_on = [&] {
    return sequence.held->tokens > sequence.chunked_tokens &&
           (places_.kv.RoomInSpan(*sequence.held) == 0 ||
            places_.kv.directory().SlotsFree(sequence.node) <=
                places_.residents.Starving(sequence.node));
  };
  while (sequence.held->tokens < end && !goes_on() && Allocate(sequence, plan)) {
    const uint32_t wanted =
        std::min(end - sequence.held->tokens, places_.kv.RoomInSpan(*sequence.held));
    const uint64_t waited = places_.residents.Starving(sequence.node);
    places_.MakeRoom(sequence.node, waited + wanted);
    const uint64_t free = places_.kv.directory().SlotsFree(sequence.node);
    const auto tokens =
        static_cast<uint32_t>(std::min<uint64_t>(wanted, free - std::min(free, waited)));
    const auto allocated = places_.kv.Append(id, tokens);
    LAMINA_CHECK(allocated.ok());
    for (const HeldExtent& held : *allocated) {
      AddAllocation(sequence, held, plan);
    }
  }
  return sequence.runs() ? std::min(end, sequence.held->tokens) : 0;
}

void RowSlots::AddAllocation(Sequence& sequence, const HeldExtent& held, plan::StepPlan& plan) {
  plan.allocations.push_back(
      {.sequence = sequence.request.id, .extent = held.extent, .memory_node = held.memory_node});
  places_.lanes.Grow(sequence, held.memory_node, held.extent.tokens, places_.kv);
}

void RowSlots::ReleaseBehindWindow(Sequence& sequence, plan::StepPlan& plan) {
  const uint32_t window = options_.windows.longest();
  if (sequence.parent != 0 || !sequence.attached.empty()) {
    return;  // A fork and its parent share all slots until both decode.
  }
  // In its lane no step of it may be under way when it goes on in another one.
  const bool decodes = sequence.state == SequenceState::kDecoding;
  if (decodes ? sequence.moving() || places_.lanes.IsPrefill(sequence.lane)
              : sequence.chunked_tokens == sequence.join_tokens) {
    return;
  }
  const uint32_t next = decodes ? sequence.planned_tokens - 1 : sequence.chunked_tokens;
  const uint32_t hidden = next + 1 - std::min(next + 1, window);
  const uint32_t tokens =
      std::min(hidden, sequence.held->tokens) / options_.release_tokens * options_.release_tokens;
  if (tokens <= sequence.held->released) {
    return;
  }
  places_.cache.Forget(sequence);  // What lacks its first tokens is no prefix of anything.
  places_.borders.ReleaseFirst(sequence, tokens);
  sequence.last_step = decodes ? plan.step : sequence.last_step;
  if (options_.span_tokens > 0) {
    places_.residents.Resettle(sequence, places_.kv);
  }
  plan.releases.push_back({.sequence = sequence.request.id, .tokens = tokens});
}

// Free slots that older starving rows will take count as on their way, like those in quarantine and
// those that are being written to the spill tier.
void RowSlots::MakeRoom(Sequence& sequence) {
  const uint32_t node = sequence.node;
  while (sequence.starving) {
    const KvDirectory& slots = places_.kv.directory();
    places_.MakeRoom(node, places_.residents.Starving(node));
    const uint64_t coming = uint64_t{slots.SlotsFree(node)} + slots.SlotsQuarantined(node) +
                            places_.spills.SlotsLeaving(node);
    const uint64_t wanted = places_.residents.Starving(node);
    if (coming >= wanted) {
      return;
    }
    const GivingUp loser = out_of_slots_->WhoGivesUp(
        FullNodeView(sequence, places_.residents, places_.spills, wanted - coming));
    LAMINA_CHECK(loser.who.kind == HolderKind::kSequence);
    Sequence* taken = life_.Find(loser.who.id);
    LAMINA_CHECK(taken != nullptr && places_.residents.On(node).contains(taken));
    if (loser.how == GivesUp::kToTier) {
      life_.Spill(*taken);
    } else {
      life_.Preempt(*taken);
    }
  }
}

// Submit() let the sequence in only if all its spans fit side by side, so there is a node that
// they leave room on. If others fill it, that is the one where room is made.
uint32_t RowSlots::PickNextNode(const Sequence& sequence) const {
  const std::vector<uint64_t>& context = places_.lanes[sequence.lane].context_tokens;
  const auto span_seen = options_.windows.SeenOf(options_.span_tokens);
  std::vector<NodeLoad> loads;
  uint32_t roomiest = 0;
  uint64_t room_most = 0;
  for (uint32_t node = 0; node < options_.memory_nodes.size(); ++node) {
    const MemoryNodeShare& share = options_.memory_nodes[node];
    const uint64_t room = share.slots - places_.kv.SlotsOn(sequence.request.id, node);
    loads.push_back({.lane_context_tokens = context[node],
                     .bandwidth = share.bandwidth_bytes_per_second,
                     .fits = room >= options_.span_tokens &&
                             places_.residents.Starving(node) == 0 &&
                             uint64_t{places_.kv.directory().SlotsFree(node)} +
                                     places_.kept.SlotsOn(node) + places_.cache.UnusedOn(node) >
                                 0});
    if (room > room_most) {
      roomiest = node;
      room_most = room;
    }
  }
  return placement_.NodeOfNextSpan(loads, static_cast<uint32_t>(span_seen)).value_or(roomiest);
}

}  // namespace lamina::core
