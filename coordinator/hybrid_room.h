// SPDX-License-Identifier: Apache-2.0
//
// HybridRoom: how a memory node's bytes are cut where policy fetch_hybrid is one of several: slots
// of its own, of two kinds, and next to them those of the others, which have K and V alone
// (docs/adr/0257-slots-of-two-kinds-next-to-others.md).
//
// Threading: plain values, pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "coordinator/fetch_options.h"
#include "coordinator/hybrid_share.h"
#include "plan/slot_kinds.h"

namespace lamina::coordinator {

// Slots of a memory node, both in whole blocks, so that tiles of K are whole in the arena that has
// K and V of both.
struct HybridRoom {
  uint32_t others = 0;
  uint32_t hybrid = 0;
};

// Requires: percent < 100, which says how much of the capacity slots of fetch_hybrid have.
HybridRoom RoomIn(const TokenBytes& bytes, plan::SlotKinds kinds, uint32_t percent,
                  uint64_t capacity);

// As many of each at least, whatever kinds those of fetch_hybrid are of.
uint64_t SlotsOfEach(const TokenBytes& bytes, uint32_t percent, uint64_t capacity);

// A capacity that has so many slots of each, whole blocks.   Requires: 0 < percent < 100.
uint64_t CapacityForEach(const TokenBytes& bytes, uint32_t percent, uint64_t slots);

// As HeadBytesBesidesKv() of coordinator/fetch_options.h, for a node that has so many slots; where
// fetch_hybrid is one of several policies, so many of each.   Requires: slots > 0.
uint64_t HeadBytesBesidesKv(const FetchOptions& fetch, size_t layers, uint64_t kv,
                            uint32_t kv_heads, uint64_t slots);

}  // namespace lamina::coordinator
