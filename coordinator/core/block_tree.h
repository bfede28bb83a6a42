// SPDX-License-Identifier: Apache-2.0
//
// BlockTree: the cached blocks, one tree for each first block, its memory node and salt, and which
// of them were used least recently. Below a block that ends a span of a sequence that is cut there
// may be blocks on other nodes.
//
// Threading: one thread.   Determinism: same calls, same answers.
// Cost: a block that is looked for takes the logarithm of how many follow the same tokens; one that
// changes, that of how many the node has.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/core/cached_block.h"
#include "coordinator/core/stable_pool.h"

namespace lamina::core {

class BlockTree {
 public:
  using Tokens = absl::Span<const TokenId>;

  // No blocks. Runs of `copied_blocks` blocks from the top of a tree are copied together; 0: none.
  void Reset(uint32_t nodes, uint32_t copied_blocks);

  // Null: there is none.
  CachedBlock* Find(uint64_t id) const;
  CachedBlock* FirstOn(uint32_t node, Tokens tokens, absl::string_view salt) const;
  // Calls `visit` with the first blocks that have these tokens, by node.
  void VisitFirsts(Tokens tokens, absl::string_view salt,
                   absl::FunctionRef<void(const CachedBlock&)> visit) const;
  const absl::btree_map<uint64_t, CachedBlock*>& blocks() const { return blocks_; }
  uint32_t with_slots() const { return with_slots_; }

  // A block that has slots, and one that uses it. Requires: its place is free; no other has a
  // larger number; its parent has slots.
  CachedBlock& Insert(uint64_t id, uint32_t node, const std::string& salt, CachedBlock* parent,
                      Tokens tokens);
  // One more uses a block with slots, or one less.
  void Use(CachedBlock& block);
  void Unuse(CachedBlock& block, uint64_t now);
  // Requires: droppable(), and none below it has slots on another node, either.
  void LoseSlots(CachedBlock& block);
  // One without slots has some again, and one that uses it. Requires: its parent has slots.
  void GainSlots(CachedBlock& block);
  // Requires: it has neither slots nor children.
  void Erase(CachedBlock& block);

  // Whether a run that is copied ends with it.
  bool EndsRun(const CachedBlock& block) const {
    return copied_blocks_ > 0 && (block.depth + 1) % copied_blocks_ == 0;
  }
  uint32_t copied_blocks() const { return copied_blocks_; }
  // Before and after it changes which copies a block is in.
  void Unlist(CachedBlock& block);
  void List(CachedBlock& block);

  uint32_t UnusedOn(uint32_t node) const { return nodes_[node].unused; }
  uint32_t nodes() const { return static_cast<uint32_t>(nodes_.size()); }
  // The block that was used least recently: of those that may be dropped, of those that end a run
  // which could be copied and is not, and of those that end one that is copied. Of several used at
  // the same time the lowest, or of those not copied the highest: a copy is of use only with all
  // above it. What is below one that may be dropped, on other nodes, was used no later. Null: none.
  CachedBlock* OldestDroppable(uint32_t node) const { return FirstIn(nodes_[node].droppable); }
  CachedBlock* OldestUncopied(uint32_t node) const { return FirstIn(nodes_[node].uncopied); }
  CachedBlock* OldestCopied(uint32_t node) const { return FirstIn(nodes_[node].copied); }
  // When OldestDroppable() was used last; nothing: there is none. Reads no block.
  std::optional<uint64_t> OldestUse(uint32_t node) const {
    const Places& droppable = nodes_[node].droppable;
    return droppable.empty() ? std::nullopt : std::optional(droppable.begin()->first.first);
  }

  // Recounts. Errors: kInternal names the first broken invariant.
  absl::Status Audit() const;

 private:
  // By what first blocks are found: those of one tree on all nodes follow each other.
  struct FirstKey {
    Tokens tokens;
    absl::string_view salt;
    uint32_t node = 0;
    bool operator<(const FirstKey& other) const;
  };
  struct FirstBefore {
    using is_transparent = void;
    static FirstKey KeyOf(const CachedBlock* block) {
      return {.tokens = block->tokens, .salt = block->salt, .node = block->node};
    }
    static const FirstKey& KeyOf(const FirstKey& key) { return key; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return KeyOf(a) < KeyOf(b);
    }
  };
  // By when blocks were used last, and of those used at the same time from below, or from above: a
  // block's number is above its parent's. To find a place no block is read.
  using Place = std::pair<uint64_t, uint64_t>;
  using Places = absl::btree_map<Place, CachedBlock*>;
  static CachedBlock* FirstIn(const Places& places) {
    return places.empty() ? nullptr : places.begin()->second;
  }
  static Place FromBelow(const CachedBlock& block) {
    return {block.last_used, UINT64_MAX - block.id};
  }
  static Place FromAbove(const CachedBlock& block) { return {block.last_used, block.id}; }
  struct Node {
    uint32_t unused = 0;
    Places droppable;  // From below,
    Places uncopied;   // from above,
    Places copied;     // and from below.
  };
  bool IsUncopied(const CachedBlock& block) const;

  uint32_t copied_blocks_ = 0;
  uint32_t with_slots_ = 0;
  std::vector<Node> nodes_;
  StablePool<CachedBlock> pool_;
  absl::btree_map<uint64_t, CachedBlock*> blocks_;  // By id.
  absl::btree_set<CachedBlock*, FirstBefore> firsts_;
};

}  // namespace lamina::core
