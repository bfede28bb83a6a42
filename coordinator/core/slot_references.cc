// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/slot_references.h"

#include <algorithm>
#include <iterator>

namespace lamina::core {

SlotReferences::Runs::iterator SlotReferences::BeginAt(uint32_t slot) {
  const auto next = shared_.upper_bound(slot);
  if (next == shared_.begin()) {
    return next;
  }
  const auto before = std::prev(next);
  if (before->first == slot) {
    return before;
  }
  if (before->second.end <= slot) {
    return next;
  }
  const Run behind = before->second;
  before->second.end = slot;
  return shared_.emplace_hint(next, slot, behind);
}

SlotReferences::Runs::iterator SlotReferences::EndAt(Runs::iterator run, uint32_t slot) {
  if (run->second.end <= slot) {
    return run;
  }
  const Run behind = run->second;
  run->second.end = slot;
  return std::prev(shared_.emplace_hint(std::next(run), slot, behind));
}

SlotReferences::Runs::iterator SlotReferences::AddSecond(Runs::iterator next, Extent extent) {
  const uint32_t end = extent.first_slot + extent.tokens;
  if (next != shared_.begin()) {
    Run& before = std::prev(next)->second;
    if (before.end == extent.first_slot && before.count == 2) {
      before.end = end;
      return next;
    }
  }
  return std::next(shared_.emplace_hint(next, extent.first_slot, Run{.end = end, .count = 2}));
}

void SlotReferences::Add(Extent extent) {
  const uint32_t end = extent.first_slot + extent.tokens;
  uint32_t at = extent.first_slot;
  auto it = BeginAt(at);
  while (at < end) {
    if (it != shared_.end() && it->first == at) {
      it = EndAt(it, end);
      ++it->second.count;
      at = it->second.end;
      ++it;
      continue;
    }
    const uint32_t gap_end = it == shared_.end() ? end : std::min(end, it->first);
    it = AddSecond(it, {at, gap_end - at});
    at = gap_end;
  }
}

void SlotReferences::Drop(Extent extent, std::vector<Extent>& released) {
  const uint32_t end = extent.first_slot + extent.tokens;
  uint32_t at = extent.first_slot;
  auto it = BeginAt(at);
  while (at < end) {
    if (it != shared_.end() && it->first == at) {
      it = EndAt(it, end);
      at = it->second.end;
      it = --it->second.count == 1 ? shared_.erase(it) : std::next(it);
      continue;
    }
    const uint32_t gap_end = it == shared_.end() ? end : std::min(end, it->first);
    released.push_back({at, gap_end - at});
    at = gap_end;
  }
}

uint32_t SlotReferences::CountAt(uint32_t slot) const {
  auto it = shared_.upper_bound(slot);
  if (it == shared_.begin()) {
    return 1;
  }
  --it;
  return slot < it->second.end ? it->second.count : 1;
}

}  // namespace lamina::core
