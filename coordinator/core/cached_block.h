// SPDX-License-Identifier: Apache-2.0
//
// CachedBlock: K and V of a run of tokens that outlive the sequence that made them, as a node of a
// tree: what is above it are the tokens before (prefix_cache.h).

#pragma once

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "coordinator/core/blocks_below.h"
#include "plan/step_plan.h"

namespace lamina::core {

struct OpenSpan;  // Defined by KvDirectory.

// Tokens of a block in bf16: a tile of K (kernels/k_tiles.h), so that no tile is shared in part.
inline constexpr uint32_t kCachedBlockTokens = 16;

// In the order of use: what a sequence that leaves reads and writes of each block lies together.
struct CachedBlock {
  using Tokens = absl::InlinedVector<TokenId, kCachedBlockTokens>;

  uint64_t id = 0;             // Above that of its parent.
  plan::SequenceId maker = 0;  // While it is pending.
  uint64_t last_used = 0;
  uint32_t users = 0;                // Running sequences.
  uint32_t children_with_slots = 0;  // On its node.
  uint32_t node = 0;
  uint32_t depth = 0;             // How many are above it.
  CachedBlock* parent = nullptr;  // Null for the first one on its way.
  OpenSpan* slots = nullptr;      // A kept span.
  uint32_t bare = 0;              // So many of its first tokens have no activations.
  // Without slots its K and V are in a spill tier, and so are those of all below it.
  bool has_slots = false;
  BlocksBelow children;
  Tokens tokens;
  absl::InlinedVector<uint64_t, 1> copies;  // In the spill tier (block_copies.h), by number.
  std::string salt;                         // That of the tree, in its first blocks.

  uint32_t token_count() const { return static_cast<uint32_t>(tokens.size()); }
  bool stored() const { return has_slots && maker == 0; }
  // What is below it on other nodes, which nobody uses then, goes with it.
  bool droppable() const { return has_slots && users == 0 && children_with_slots == 0; }
};

}  // namespace lamina::core
