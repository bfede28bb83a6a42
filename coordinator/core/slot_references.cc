// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/slot_references.h"

#include <algorithm>
#include <iterator>

namespace lamina::core {

void SlotReferences::SplitAt(uint32_t slot) {
  auto it = shared_.upper_bound(slot);
  if (it == shared_.begin()) {
    return;
  }
  --it;
  if (it->first < slot && slot < it->second.end) {
    const Run behind = it->second;
    it->second.end = slot;
    shared_.emplace(slot, behind);
  }
}

void SlotReferences::Add(Extent extent) {
  const uint32_t end = extent.first_slot + extent.tokens;
  SplitAt(extent.first_slot);
  SplitAt(end);
  uint32_t at = extent.first_slot;
  auto it = shared_.lower_bound(at);
  while (at < end) {
    if (it != shared_.end() && it->first == at) {
      ++it->second.count;
      at = it->second.end;
      ++it;
      continue;
    }
    const uint32_t gap_end = it == shared_.end() ? end : std::min(end, it->first);
    it = std::next(shared_.emplace_hint(it, at, Run{.end = gap_end, .count = 2}));
    at = gap_end;
  }
}

void SlotReferences::Drop(Extent extent, std::vector<Extent>& released) {
  const uint32_t end = extent.first_slot + extent.tokens;
  SplitAt(extent.first_slot);
  SplitAt(end);
  uint32_t at = extent.first_slot;
  auto it = shared_.lower_bound(at);
  while (at < end) {
    if (it != shared_.end() && it->first == at) {
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
