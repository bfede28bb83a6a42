// SPDX-License-Identifier: Apache-2.0
//
// KvForm: how K and V of tokens are kept, and how many bytes they take
// (docs/adr/0171-int8-behind-the-open-block.md).

#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"

namespace lamina {

enum class KvForm : uint8_t { kBF16, kInt8 };

constexpr absl::string_view KvFormName(KvForm form) {
  return form == KvForm::kBF16 ? "bf16" : "int8";
}

// With kInt8: tokens of a block, which has scales of its own. Blocks that end at or before a row's
// position are INT8 for it; its own, the open one, is bf16.
inline constexpr uint32_t kInt8BlockTokens = 64;

// How many of the first tokens are INT8 for the row at `position`.
constexpr uint32_t Int8TokensOf(uint32_t position) {
  return position / kInt8BlockTokens * kInt8BlockTokens;
}

// Scales of K that a slot holds: those of so many channels.
constexpr uint32_t Int8ScalesOfSlot(uint32_t head_dim) {
  return (head_dim + kInt8BlockTokens - 1) / kInt8BlockTokens;
}

// Bytes that a slot takes of one KV head.
constexpr uint64_t KvHeadBytes(uint32_t head_dim, KvForm form) {
  constexpr uint64_t kScaleBytes = 4;
  return form == KvForm::kBF16
             ? uint64_t{4} * head_dim
             : uint64_t{2} * head_dim + kScaleBytes * (1 + Int8ScalesOfSlot(head_dim));
}

// Bytes of a token's K and V in all KV heads of all layers.
inline uint64_t KvSlotBytes(absl::Span<const AttentionDescriptor> layers, KvForm form) {
  uint64_t bytes = 0;
  for (const AttentionDescriptor& layer : layers) {
    bytes += layer.kv_heads * KvHeadBytes(layer.head_dim, form);
  }
  return bytes;
}

// Slots of a node that has some of each form.
struct KvSlots {
  uint64_t bf16 = 0;
  uint64_t int8 = 0;
};

// How a node that holds KV divides its bytes: slots, and with INT8 tails of open blocks, bf16, for
// so many sequences.
struct KvLayout {
  KvForm form = KvForm::kBF16;
  uint32_t tails = 0;
  // Slots of both forms: those of INT8 have so many per cent of what the tails leave, and those of
  // bf16 the rest. 0: all slots are of `form`.
  uint32_t int8_percent = 0;

  bool has_both() const { return int8_percent > 0; }
  bool keeps_int8() const { return form == KvForm::kInt8 || has_both(); }

  uint64_t SlotBytes(absl::Span<const AttentionDescriptor> layers) const {
    return KvSlotBytes(layers, form);
  }
  // Bytes of all tails.
  uint64_t TailBytes(absl::Span<const AttentionDescriptor> layers) const {
    return uint64_t{tails} * kInt8BlockTokens * KvSlotBytes(layers, KvForm::kBF16);
  }
  // Slots of each form in the capacity. What slots of INT8 leave of their share goes to the others.
  // Requires: has_both().
  KvSlots BothIn(uint64_t capacity, absl::Span<const AttentionDescriptor> layers) const {
    const uint64_t tail_bytes = TailBytes(layers);
    const uint64_t bytes = capacity < tail_bytes ? 0 : capacity - tail_bytes;
    const uint64_t slot = KvSlotBytes(layers, KvForm::kInt8);
    const uint64_t int8 = bytes / 100 * int8_percent / slot;
    return {.bf16 = (bytes - int8 * slot) / KvSlotBytes(layers, KvForm::kBF16), .int8 = int8};
  }
  // How many slots fit into the capacity next to the tails; with both forms so many of each.
  uint64_t SlotsIn(uint64_t capacity, absl::Span<const AttentionDescriptor> layers) const {
    if (has_both()) {
      const KvSlots both = BothIn(capacity, layers);
      return both.bf16 < both.int8 ? both.bf16 : both.int8;
    }
    const uint64_t tail_bytes = TailBytes(layers);
    return capacity < tail_bytes ? 0 : (capacity - tail_bytes) / SlotBytes(layers);
  }
  // A capacity for so many slots, of each form: the least one, with both up to 100 bytes more.
  uint64_t CapacityFor(uint64_t slots, absl::Span<const AttentionDescriptor> layers) const {
    if (has_both()) {
      const uint64_t int8 = slots * KvSlotBytes(layers, KvForm::kInt8);
      const uint64_t bf16 = slots * KvSlotBytes(layers, KvForm::kBF16);
      const uint64_t for_int8 = (int8 + int8_percent - 1) / int8_percent * 100;
      const uint64_t for_bf16 = (bf16 + 99 - int8_percent) / (100 - int8_percent) * 100;
      return TailBytes(layers) + (for_int8 > for_bf16 ? for_int8 : for_bf16);
    }
    return TailBytes(layers) + slots * SlotBytes(layers);
  }
};

}  // namespace lamina
