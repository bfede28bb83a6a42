// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/step_borders.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace lamina::core {

void StepBorders::Reset(const SchedulerOptions& options, const LaneHomes& homes) {
  decode_lanes_ = options.lanes;
  prefill_ = options.prefill_lanes;
  homes_ = homes;
  scratch_.assign(std::max(homes.groups(), prefill_.replicas),
                  ScratchSpace(options.scratch_tokens));
  resident_ = ScratchSpace(options.resident_tokens);
  lanes_.assign(decode_lanes_ + prefill_.count(), {});
  leaving_ = 0;
  making_.reset();
}

ScratchSpace& StepBorders::ScratchOf(uint32_t lane) {
  return scratch_[lane >= decode_lanes_ ? prefill_.ReplicaOf(lane - decode_lanes_)
                                        : homes_.GroupOf(lane)];
}

std::optional<uint32_t> StepBorders::TakeScratch(uint32_t lane, uint32_t tokens) {
  return ScratchOf(lane).Take(tokens);
}

std::optional<uint32_t> StepBorders::TakeResident(uint32_t lane, uint32_t tokens) {
  LaneBorders& borders = lanes_[lane];
  if (borders.leaving.empty()) {
    return resident_.Take(tokens);
  }
  const uint32_t place = borders.leaving.back();
  borders.leaving.pop_back();
  borders.taken_over.push_back(place);
  return place;
}

StepBorder StepBorders::Seal(uint32_t lane) {
  making_.reset();
  LaneBorders& borders = lanes_[lane];
  StepBorder sealed = std::exchange(borders.next, {});
  borders.next = std::exchange(borders.later, {});
  borders.leaving.insert(borders.leaving.end(), sealed.resident.begin(), sealed.resident.end());
  return sealed;
}

StepBorder& StepBorders::BorderOf(const Sequence& sequence) {
  LaneBorders& lane = lanes_[sequence.lane];
  const bool in_step =
      making_ && making_->lane == sequence.lane && making_->step == sequence.last_work;
  return in_step ? lane.later : lane.next;
}

uint64_t StepBorders::TicketOf(StepBorder& border) {
  if (border.ticket == 0) {
    border.ticket = ++tickets_;
  }
  return border.ticket;
}

void StepBorders::ReleaseFirst(const Sequence& sequence, uint32_t tokens) {
  LAMINA_CHECK(making_ && making_->lane == sequence.lane && making_->step != sequence.last_work);
  kv_.ReleaseFirst(sequence.request.id, tokens, TicketOf(lanes_[sequence.lane].next));
}

void StepBorders::Leave(Sequence& sequence) {
  StepBorder& border = BorderOf(sequence);
  kv_.Release(sequence.request.id, TicketOf(border));
  border.leaves.push_back({.id = sequence.request.id});
  ++leaving_;
  if (sequence.has_scratch) {
    border.scratch.push_back(sequence.scratch_offset);
    sequence.has_scratch = false;
  }
  if (sequence.resident.tokens > 0) {
    border.resident.push_back(sequence.resident.place);
    sequence.resident = {};
  }
}

void StepBorders::Spill(const Sequence& sequence, const plan::SpillOut& spill) {
  BorderOf(sequence).spills.push_back(spill);
}

void StepBorders::WaitAfter(const Sequence& sequence) {
  BorderOf(sequence).draining.push_back(sequence.request.id);
}

void StepBorders::Pass(uint32_t lane, const StepBorder& border) {
  leaving_ -= static_cast<uint32_t>(border.leaves.size());
  if (border.ticket != 0) {
    kv_.Recycle(border.ticket);
  }
  for (const uint32_t offset : border.scratch) {
    ScratchOf(lane).Free(offset);
  }
  LaneBorders& borders = lanes_[lane];
  for (const uint32_t place : border.resident) {
    const auto other = std::find(borders.taken_over.begin(), borders.taken_over.end(), place);
    if (other != borders.taken_over.end()) {
      borders.taken_over.erase(other);  // The last of those who have had it frees it.
      continue;
    }
    std::erase(borders.leaving, place);
    resident_.Free(place);
  }
}

bool StepBorders::empty() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const LaneBorders& lane) {
    return lane.next.leaves.empty() && lane.later.leaves.empty();
  });
}

bool StepBorders::rooms_empty() const {
  return resident_.empty() && std::all_of(scratch_.begin(), scratch_.end(),
                                          [](const ScratchSpace& space) { return space.empty(); });
}

}  // namespace lamina::core
