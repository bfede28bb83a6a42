// SPDX-License-Identifier: Apache-2.0
//
// BlockTree: the cached blocks, one tree for each memory node and salt, and which of them were used
// least recently.
//
// Threading: one thread.   Determinism: same calls, same answers.
// Cost: a block that is looked for takes the logarithm of how many follow the same tokens; one that
// changes, that of how many the node has.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "coordinator/core/cached_block.h"

namespace lamina::core {

class BlockTree {
 public:
  using Tokens = CachedBlock::Tokens;

  explicit BlockTree(uint32_t block_tokens) : block_tokens_(block_tokens) {}

  // No blocks. Runs of `copied_blocks` blocks from the top of a tree are copied together; 0: none.
  void Reset(uint32_t nodes, uint32_t copied_blocks);

  // Null: there is none.
  CachedBlock* Find(uint64_t id) const;
  CachedBlock* FirstOn(uint32_t node, const Tokens& tokens, const std::string& salt) const;
  static CachedBlock* Below(const CachedBlock& parent, const Tokens& tokens);
  // The first blocks with these tokens, by node; null: none has one.
  const std::vector<CachedBlock*>* Firsts(const Tokens& tokens, const std::string& salt) const;
  const absl::btree_map<uint64_t, std::unique_ptr<CachedBlock>>& blocks() const { return blocks_; }
  uint32_t with_slots() const { return with_slots_; }

  // A block that nobody uses, and which has slots; Use() or Settle() follows. Its place is free,
  // and its parent has slots.
  CachedBlock& Insert(uint64_t id, uint32_t node, const std::string& salt, CachedBlock* parent,
                      const Tokens& tokens);
  void Settle(CachedBlock& block, uint64_t last_used);
  void Use(CachedBlock& block);
  void Unuse(CachedBlock& block, uint64_t now);
  void LoseSlots(CachedBlock& block);  // Requires: droppable().
  void GainSlots(CachedBlock& block);  // As Insert(), for one without slots.
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
  // above it. Null: none.
  CachedBlock* OldestDroppable(uint32_t node) const {
    const auto& droppable = nodes_[node].droppable;
    return droppable.empty() ? nullptr : Find(UINT64_MAX - droppable.begin()->second);
  }
  CachedBlock* OldestUncopied(uint32_t node) const {
    const auto& uncopied = nodes_[node].uncopied;
    return uncopied.empty() ? nullptr : Find(uncopied.begin()->second);
  }
  CachedBlock* OldestCopied(uint32_t node) const {
    const auto& copied = nodes_[node].copied;
    return copied.empty() ? nullptr : Find(UINT64_MAX - copied.begin()->second);
  }

  // Recounts. Errors: kInternal names the first broken invariant.
  absl::Status Audit() const;

 private:
  using First = std::pair<Tokens, std::string>;  // What the first blocks of trees have in common.
  // By when blocks were used last, and of those used at the same time from below, or from above: a
  // block's number is above its parent's. Places in place of pointers, so that nothing else is
  // read.
  using Place = std::pair<uint64_t, uint64_t>;
  static Place FromBelow(const CachedBlock& block) {
    return {block.last_used, UINT64_MAX - block.id};
  }
  static Place FromAbove(const CachedBlock& block) { return {block.last_used, block.id}; }
  struct Node {
    uint32_t unused = 0;
    absl::btree_set<Place> droppable;  // From below,
    absl::btree_set<Place> uncopied;   // from above,
    absl::btree_set<Place> copied;     // and from below.
  };
  bool IsUncopied(const CachedBlock& block) const;

  const uint32_t block_tokens_;
  uint32_t copied_blocks_ = 0;
  uint32_t with_slots_ = 0;
  std::vector<Node> nodes_;
  absl::btree_map<uint64_t, std::unique_ptr<CachedBlock>> blocks_;  // By id.
  absl::btree_map<First, std::vector<CachedBlock*>> firsts_;  // One on a node at most, by node.
};

}  // namespace lamina::core
