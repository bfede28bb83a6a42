// SPDX-License-Identifier: Apache-2.0
//
// CachedBlock: K and V of a run of tokens that outlive the sequence that made them, as a node of a
// tree: what is above it are the tokens before (prefix_cache.h).

#pragma once

#include <cstdint>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/inlined_vector.h"
#include "coordinator/core/slot_holder.h"
#include "plan/step_plan.h"

namespace lamina::core {

// Tokens of a block: a tile of K (kernels/k_tiles.h), so that no tile is shared in part.
inline constexpr uint32_t kCachedBlockTokens = 16;

struct CachedBlock {
  using Tokens = absl::InlinedVector<TokenId, kCachedBlockTokens>;

  uint64_t id = 0;  // Above that of its parent.
  Tokens tokens;
  uint32_t node = 0;
  std::string salt;
  CachedBlock* parent = nullptr;  // Null for the first one on its way.
  absl::btree_map<Tokens, CachedBlock*> children;
  uint32_t depth = 0;  // How many are above it.
  uint32_t users = 0;  // Running sequences.
  uint64_t last_used = 0;
  plan::SequenceId maker = 0;  // While it is pending.
  // Without slots its K and V are in a spill tier, and so are those of all below it.
  bool has_slots = true;
  uint32_t children_with_slots = 0;
  absl::InlinedVector<uint64_t, 1> copies;  // In the spill tier (block_copies.h), by number.

  bool stored() const { return has_slots && maker == 0; }
  bool droppable() const { return has_slots && users == 0 && children_with_slots == 0; }
  SlotHolder holder() const { return {HolderKind::kCachedBlock, id}; }
};

}  // namespace lamina::core
