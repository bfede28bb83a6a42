// SPDX-License-Identifier: Apache-2.0
//
// KvArena: memory for K and V of token slots in all layers: a memory node's pool, a compute node's
// scratch.
//
// Layout: for each layer a K plane and a V plane, as in KvView: tokens inside heads
// (docs/adr/0005-kv-layout.md), K in tiles (docs/adr/0084-k-in-tiles.md).
//
// Nobody outside this process reads or writes it: data crosses in windows and is copied here.
//
// Threading: the owner's. Memory: reserved and touched in Create(); nothing is allocated later.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "kernels/arena_memory.h"
#include "kernels/attention.h"

namespace lamina::kernels {

class KvArena {
 public:
  // Bytes of one slot: K and V of all layers.
  static uint64_t SlotBytes(absl::Span<const AttentionDescriptor> layers);

  // Errors: kInvalidArgument    no slots, or more bytes than an address can say.
  //         kResourceExhausted  the host refused; says the size asked for.
  static absl::StatusOr<KvArena> Create(absl::Span<const AttentionDescriptor> layers,
                                        uint32_t slots);

  uint32_t slots() const { return slots_; }
  uint64_t bytes() const { return memory_.bytes(); }
  absl::Span<const std::byte> memory() const { return {memory_.data(), memory_.bytes()}; }

  BFloat16* k(uint32_t layer) { return data() + planes_[layer].k; }
  BFloat16* v(uint32_t layer) { return data() + planes_[layer].v; }
  // Elements between two heads.
  size_t head_stride(uint32_t layer) const { return planes_[layer].head_stride; }
  // From KV head `head` on.
  KvView View(uint32_t layer, uint32_t head = 0) {
    const size_t first = head * head_stride(layer);
    return {.k = k(layer) + first, .v = v(layer) + first, .head_stride = head_stride(layer)};
  }

 private:
  struct Plane {
    size_t k = 0;  // Elements from data().
    size_t v = 0;
    size_t head_stride = 0;
  };
  KvArena() = default;

  BFloat16* data() { return reinterpret_cast<BFloat16*>(memory_.data()); }

  ArenaMemory memory_;
  uint32_t slots_ = 0;
  std::vector<Plane> planes_;
};

}  // namespace lamina::kernels
