// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hybrid_room.h"

#include <algorithm>

namespace lamina::coordinator {
namespace {

// The most slots of a node.
constexpr uint64_t kSlotsMax = uint64_t{1} << 31;

uint64_t OwnBytes(uint32_t percent, uint64_t capacity) { return capacity / 100 * percent; }

uint64_t WholeBlocks(uint64_t slots) {
  return slots / plan::SlotKinds::kBlockSlots * plan::SlotKinds::kBlockSlots;
}

}  // namespace

HybridRoom RoomIn(const TokenBytes& bytes, plan::SlotKinds kinds, uint32_t percent,
                  uint64_t capacity) {
  const uint64_t own = OwnBytes(percent, capacity);
  const uint32_t hybrid = SlotsOfKinds(bytes, kinds, own);
  const uint64_t others = std::min(kSlotsMax - hybrid, (capacity - own) / bytes.kv);
  return {.others = static_cast<uint32_t>(WholeBlocks(others)), .hybrid = hybrid};
}

uint64_t SlotsOfEach(const TokenBytes& bytes, uint32_t percent, uint64_t capacity) {
  const uint64_t own = OwnBytes(percent, capacity);
  return WholeBlocks(
      std::min(own / std::max(bytes.kv, bytes.activation), (capacity - own) / bytes.kv));
}

// In whole hundreds of bytes, as parts are counted.
uint64_t CapacityForEach(const TokenBytes& bytes, uint32_t percent, uint64_t slots) {
  const auto hundredths = [](uint64_t part, uint32_t parts) { return (part + parts - 1) / parts; };
  return 100 * std::max(hundredths(slots * std::max(bytes.kv, bytes.activation), percent),
                        hundredths(slots * bytes.kv, 100 - percent));
}

uint64_t HeadBytesBesidesKv(const FetchOptions& fetch, size_t layers, uint64_t kv,
                            uint32_t kv_heads, uint64_t slots) {
  const uint64_t besides = HeadBytesBesidesKv(fetch, layers, kv, kv_heads);
  const uint32_t percent = fetch.hybrid.has_value() ? fetch.hybrid->percent : 0;
  if (percent == 0) {
    return besides;
  }
  const uint64_t head = kv / kv_heads;
  const TokenBytes bytes{.kv = head, .activation = head + besides};  // Or fewer.
  return (CapacityForEach(bytes, percent, slots) + slots - 1) / slots - head;
}

}  // namespace lamina::coordinator
