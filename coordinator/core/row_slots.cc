// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/row_slots.h"

#include <optional>
#include <utility>

#include "common/check.h"

namespace lamina::core {
namespace {

class FullNodeView final : public FullNode {
 public:
  FullNodeView(const Sequence& needy, const NodeResidents& residents, uint64_t slots_missing)
      : needy_(needy), residents_(residents), slots_missing_(slots_missing) {}

  uint32_t node() const override { return needy_.node; }
  SlotHolder needy() const override { return needy_.request.id; }
  uint64_t slots_missing() const override { return slots_missing_; }
  void VisitFromLast(absl::FunctionRef<bool(const Holding&)> visit) const override {
    const SequenceQueue& residents = residents_.On(needy_.node);
    for (auto one = residents.rbegin(); one != residents.rend(); ++one) {
      const Sequence& sequence = **one;
      if (!visit({.holder = sequence.request.id,
                  .slots = sequence.slots,
                  .tokens_left =
                      sequence.request.score ? 0 : sequence.request.tokens_max - sequence.tokens(),
                  .has_sampled = !sequence.committed.empty()})) {
        return;
      }
    }
  }

 private:
  const Sequence& needy_;
  const NodeResidents& residents_;
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

bool RowSlots::Grant(Sequence& sequence, plan::StepPlan& plan) {
  const plan::SequenceId id = sequence.request.id;
  HeldSpans& held = *sequence.held;
  const bool new_span = places_.kv.RoomInSpan(held) == 0;
  if (new_span) {
    const uint32_t node = PickNextNode(sequence);
    if (node != sequence.node) {
      places_.residents.SetNode(sequence, node, places_.kv);
    }
  }
  const size_t ahead = places_.residents.StarvingBefore(sequence);
  if (places_.kv.directory().SlotsFree(sequence.node) <= ahead) {
    places_.cache.MakeRoom(sequence.node, ahead + 1);
  }
  if (places_.kv.directory().SlotsFree(sequence.node) <= ahead) {
    places_.residents.Starve(sequence);
    MakeRoom(sequence);
    return false;
  }
  places_.residents.Feed(sequence);
  if (new_span) {
    places_.kv.BeginSpan(id, sequence.node);
  }
  const std::optional<HeldExtent> granted = places_.kv.AppendOne(held);
  LAMINA_CHECK(granted.has_value());
  plan.grants.push_back(
      {.sequence = id, .extent = granted->extent, .memory_node = granted->memory_node});
  places_.lanes.Grow(sequence, sequence.node, 1);
  return true;
}

// Free slots that older starving rows will take count as on their way, like those in quarantine.
void RowSlots::MakeRoom(Sequence& sequence) {
  const uint32_t node = sequence.node;
  while (sequence.starving) {
    const KvDirectory& slots = places_.kv.directory();
    places_.cache.MakeRoom(node, places_.residents.Starving(node));
    const uint64_t coming = uint64_t{slots.SlotsFree(node)} + slots.SlotsQuarantined(node);
    const uint64_t wanted = places_.residents.Starving(node);
    if (coming >= wanted) {
      return;
    }
    const SlotHolder loser =
        out_of_slots_->WhoGivesUp(FullNodeView(sequence, places_.residents, wanted - coming));
    LAMINA_CHECK(loser.kind == HolderKind::kSequence);
    Sequence* taken = life_.Find(loser.id);
    LAMINA_CHECK(taken != nullptr && places_.residents.On(node).contains(taken));
    life_.Preempt(*taken);
  }
}

// Submit() let the sequence in only if all its spans fit beside each other, so there is a node that
// they leave room on. If others fill it, that is the one where room is made.
uint32_t RowSlots::PickNextNode(const Sequence& sequence) const {
  const std::vector<uint64_t>& context = places_.lanes[sequence.lane].context_tokens;
  std::vector<NodeLoad> loads;
  uint32_t roomiest = 0;
  uint64_t room_most = 0;
  for (uint32_t node = 0; node < options_.memory_nodes.size(); ++node) {
    const MemoryNodeShare& share = options_.memory_nodes[node];
    const uint64_t room = share.slots - places_.kv.TokensOn(sequence.request.id, node);
    loads.push_back({.lane_context_tokens = context[node],
                     .bandwidth = share.bandwidth_bytes_per_second,
                     .fits = room >= options_.span_tokens &&
                             places_.residents.Starving(node) == 0 &&
                             places_.kv.directory().SlotsFree(node) > 0});
    if (room > room_most) {
      roomiest = node;
      room_most = room;
    }
  }
  return placement_.NodeOfNextSpan(loads, options_.span_tokens).value_or(roomiest);
}

}  // namespace lamina::core
