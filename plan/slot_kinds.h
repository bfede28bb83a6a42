// SPDX-License-Identifier: Apache-2.0
//
// SlotKinds: what the slots of a memory node hold. Under policy fetch_hybrid (hybridserve.txt 4.3)
// a share of them holds the activation of a token and the others its K and V, block by block:
//
//   block b of kBlockSlots slots holds activations   if floor((b + 1) s) > floor(b s)
//
// with s the share. So kinds alternate as evenly as whole blocks can, and the tokens of a request,
// which lie in slots that follow each other, have the ratio of the node (equation 11 there) up to a
// block for each run of slots. A block is a tile of K (kFetchTile), so that tiles are whole in
// arenas of one kind, and requests of two tiles may have both kinds. The slot tables, the prefix
// cache and the scheduler know nothing of kinds: what a token is held as follows from its slot.
//
// Threading: plain values, pure functions.

#pragma once

#include <algorithm>
#include <cstdint>

#include "common/extent.h"

namespace lamina::plan {

class SlotKinds {
 public:
  static constexpr uint32_t kBlockSlots = 16;
  // What shares are counted in.
  static constexpr uint32_t kUnit = 1024;

  // Every slot holds K and V.
  SlotKinds() = default;
  // In the arena of K and V others have the first `others` slots.
  // Requires: activation_share <= kUnit.
  explicit SlotKinds(uint32_t activation_share, uint32_t others = 0)
      : share_(activation_share), others_(others) {}

  uint32_t share() const { return share_; }

  bool HoldsActivation(uint32_t slot) const {
    const uint32_t block = slot / kBlockSlots;
    return BlocksBefore(block + 1) > BlocksBefore(block);
  }
  // The slot's index among those of its kind, behind others': where it lies in the arena of that
  // kind.
  uint32_t IndexOf(uint32_t slot) const {
    const uint32_t block = slot / kBlockSlots;
    const uint32_t activations = BlocksBefore(block);
    const bool activation = HoldsActivation(slot);
    const uint32_t blocks = activation ? activations : block - activations;
    return (activation ? 0 : others_) + blocks * kBlockSlots + slot % kBlockSlots;
  }

  // How many of the first `slots` slots hold activations.
  uint32_t ActivationsOf(uint32_t slots) const {
    const uint32_t whole = BlocksBefore(slots / kBlockSlots) * kBlockSlots;
    const uint32_t rest = slots % kBlockSlots;
    return whole + (rest > 0 && HoldsActivation(slots - 1) ? rest : 0);
  }
  uint32_t KvOf(uint32_t slots) const { return slots - ActivationsOf(slots); }

  // Calls visit(Extent, bool holds_activation) with the parts of an extent that are of one kind
  // each, in order.
  template <class Visit>
  void VisitParts(Extent extent, Visit visit) const {
    if (share_ == 0) {
      visit(extent, false);
      return;
    }
    while (extent.tokens > 0) {
      const bool activation = HoldsActivation(extent.first_slot);
      uint32_t tokens = 0;
      do {
        const uint32_t left = kBlockSlots - (extent.first_slot + tokens) % kBlockSlots;
        tokens += std::min(left, extent.tokens - tokens);
      } while (tokens < extent.tokens && HoldsActivation(extent.first_slot + tokens) == activation);
      visit(Extent{.first_slot = extent.first_slot, .tokens = tokens}, activation);
      extent = {.first_slot = extent.first_slot + tokens, .tokens = extent.tokens - tokens};
    }
  }

 private:
  // Blocks of activations among the first `blocks`.
  uint32_t BlocksBefore(uint32_t blocks) const {
    return static_cast<uint32_t>(uint64_t{blocks} * share_ / kUnit);
  }

  uint32_t share_ = 0;
  uint32_t others_ = 0;
};

}  // namespace lamina::plan
