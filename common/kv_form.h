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

// How a node that holds KV divides its bytes: slots, and with kInt8 tails of open blocks, bf16, for
// so many sequences.
struct KvLayout {
  KvForm form = KvForm::kBF16;
  uint32_t tails = 0;

  uint64_t SlotBytes(absl::Span<const AttentionDescriptor> layers) const {
    return KvSlotBytes(layers, form);
  }
  // Bytes of all tails.
  uint64_t TailBytes(absl::Span<const AttentionDescriptor> layers) const {
    return uint64_t{tails} * kInt8BlockTokens * KvSlotBytes(layers, KvForm::kBF16);
  }
  // How many slots fit into the capacity next to the tails.
  uint64_t SlotsIn(uint64_t capacity, absl::Span<const AttentionDescriptor> layers) const {
    const uint64_t tail_bytes = TailBytes(layers);
    return capacity < tail_bytes ? 0 : (capacity - tail_bytes) / SlotBytes(layers);
  }
  // The least capacity for so many slots.
  uint64_t CapacityFor(uint64_t slots, absl::Span<const AttentionDescriptor> layers) const {
    return TailBytes(layers) + slots * SlotBytes(layers);
  }
};

}  // namespace lamina
