// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/block_tree.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina::core {
namespace {

// Where the block on this node is among blocks that are sorted by node, or would be.
template <typename Blocks>
auto OnNode(Blocks& blocks, uint32_t node) {
  return std::lower_bound(blocks.begin(), blocks.end(), node,
                          [](const auto* block, uint32_t of) { return block->node < of; });
}

}  // namespace

void BlockTree::Reset(uint32_t nodes, uint32_t copied_blocks) {
  copied_blocks_ = copied_blocks;
  with_slots_ = 0;
  nodes_.assign(nodes, {});
  firsts_.clear();
  blocks_.clear();
}

CachedBlock* BlockTree::Find(uint64_t id) const {
  const auto found = blocks_.find(id);
  return found == blocks_.end() ? nullptr : found->second.get();
}

const std::vector<CachedBlock*>* BlockTree::Firsts(const Tokens& tokens,
                                                   const std::string& salt) const {
  const auto found = firsts_.find({tokens, salt});
  return found == firsts_.end() ? nullptr : &found->second;
}

CachedBlock* BlockTree::FirstOn(uint32_t node, const Tokens& tokens,
                                const std::string& salt) const {
  const std::vector<CachedBlock*>* firsts = Firsts(tokens, salt);
  if (firsts == nullptr) {
    return nullptr;
  }
  const auto first = OnNode(*firsts, node);
  return first != firsts->end() && (*first)->node == node ? *first : nullptr;
}

CachedBlock* BlockTree::Below(const CachedBlock& parent, const Tokens& tokens) {
  const auto found = parent.children.find(tokens);
  return found == parent.children.end() ? nullptr : found->second;
}

CachedBlock& BlockTree::Insert(uint64_t id, uint32_t node, const std::string& salt,
                               CachedBlock* parent, const Tokens& tokens) {
  auto block = std::make_unique<CachedBlock>();
  block->id = id;
  block->node = node;
  block->salt = salt;
  block->parent = parent;
  block->tokens = tokens;
  block->has_slots = false;
  block->depth = parent == nullptr ? 0 : parent->depth + 1;
  CachedBlock& inserted = *block;
  if (parent != nullptr) {
    parent->children.emplace(tokens, &inserted);
  } else {
    std::vector<CachedBlock*>& firsts = firsts_[{tokens, salt}];
    firsts.insert(OnNode(firsts, node), &inserted);
  }
  blocks_.emplace(id, std::move(block));
  GainSlots(inserted);
  return inserted;
}

void BlockTree::GainSlots(CachedBlock& block) {
  LAMINA_CHECK(!block.has_slots && block.users == 0 && block.children_with_slots == 0);
  if (CachedBlock* parent = block.parent; parent != nullptr) {
    LAMINA_CHECK(parent->has_slots);
    nodes_[parent->node].droppable.erase(FromBelow(*parent));
    ++parent->children_with_slots;
  }
  block.has_slots = true;
  nodes_[block.node].unused += block_tokens_;
  ++with_slots_;
}

void BlockTree::LoseSlots(CachedBlock& block) {
  LAMINA_CHECK(block.droppable());
  Unlist(block);
  Node& node = nodes_[block.node];
  node.unused -= block_tokens_;
  block.has_slots = false;
  List(block);
  --with_slots_;
  if (CachedBlock* parent = block.parent; parent != nullptr) {
    --parent->children_with_slots;
    if (parent->droppable()) {
      node.droppable.insert(FromBelow(*parent));
    }
  }
}

void BlockTree::Settle(CachedBlock& block, uint64_t last_used) {
  block.last_used = last_used;
  List(block);
}

void BlockTree::Use(CachedBlock& block) {
  LAMINA_CHECK(block.has_slots);
  if (block.users == 0) {
    Node& node = nodes_[block.node];
    node.unused -= block_tokens_;
    node.droppable.erase(FromBelow(block));
    if (IsUncopied(block)) {
      node.uncopied.erase(FromAbove(block));
    }
  }
  ++block.users;
}

void BlockTree::Unuse(CachedBlock& block, uint64_t now) {
  LAMINA_CHECK(block.users > 0);
  Unlist(block);
  --block.users;
  nodes_[block.node].unused += block.users == 0 ? block_tokens_ : 0;
  block.last_used = now;
  List(block);
}

void BlockTree::Erase(CachedBlock& block) {
  LAMINA_CHECK(!block.has_slots && block.children.empty() && block.copies.empty());
  if (block.parent != nullptr) {
    block.parent->children.erase(block.tokens);
  } else {
    const auto first = firsts_.find({block.tokens, block.salt});
    first->second.erase(OnNode(first->second, block.node));
    if (first->second.empty()) {
      firsts_.erase(first);
    }
  }
  blocks_.erase(block.id);
}

bool BlockTree::IsUncopied(const CachedBlock& block) const {
  return EndsRun(block) && block.copies.empty() && block.has_slots && block.users == 0;
}

void BlockTree::Unlist(CachedBlock& block) {
  Node& node = nodes_[block.node];
  if (block.droppable()) {
    node.droppable.erase(FromBelow(block));
  }
  if (IsUncopied(block)) {
    node.uncopied.erase(FromAbove(block));
  } else if (EndsRun(block) && !block.copies.empty()) {
    node.copied.erase(FromBelow(block));
  }
}

void BlockTree::List(CachedBlock& block) {
  Node& node = nodes_[block.node];
  if (block.droppable()) {
    node.droppable.insert(FromBelow(block));
  }
  if (IsUncopied(block)) {
    node.uncopied.insert(FromAbove(block));
  } else if (EndsRun(block) && !block.copies.empty()) {
    node.copied.insert(FromBelow(block));
  }
}

absl::Status BlockTree::Audit() const {
  struct Counted {
    uint32_t unused = 0;
    size_t droppable = 0;
    size_t uncopied = 0;
    size_t copied = 0;
  };
  std::vector<Counted> counted(nodes_.size());
  std::map<const CachedBlock*, size_t> children;
  std::map<const CachedBlock*, uint32_t> with_slots;
  const auto broken = [](uint64_t id, absl::string_view what) {
    return absl::InternalError(absl::StrCat("cached block ", id, ": ", what));
  };
  uint32_t slots = 0;
  for (const auto& [id, block] : blocks_) {
    const CachedBlock* parent = block->parent;
    ++children[parent];
    with_slots[parent] += block->has_slots ? 1 : 0;
    slots += block->has_slots ? 1 : 0;
    if (!block->stored() && block->has_slots && block->users != 1) {
      return broken(id, "is pending, and nobody makes it");
    }
    if (parent != nullptr && !parent->stored() && block->stored()) {
      return broken(id, "is stored below one that is not");
    }
    if (!block->has_slots && (block->users > 0 || block->copies.empty() || block->maker != 0)) {
      return broken(id, "has no slots, and no copy, or is used");
    }
    if (block->depth != (parent == nullptr ? 0 : parent->depth + 1)) {
      return broken(id, "miscounts what is above it");
    }
    const Node& node = nodes_[block->node];
    Counted& count = counted[block->node];
    const bool ends_copy = EndsRun(*block) && !block->copies.empty();
    count.unused += block->has_slots && block->users == 0 ? block_tokens_ : 0;
    count.droppable += block->droppable() ? 1 : 0;
    count.uncopied += IsUncopied(*block) ? 1 : 0;
    count.copied += ends_copy ? 1 : 0;
    if ((block->droppable() && !node.droppable.contains(FromBelow(*block))) ||
        (IsUncopied(*block) && !node.uncopied.contains(FromAbove(*block))) ||
        (ends_copy && !node.copied.contains(FromBelow(*block)))) {
      return broken(id, "is not found to be dropped or copied");
    }
  }
  for (const auto& [id, block] : blocks_) {
    if (block->children.size() != children[block.get()] ||
        block->children_with_slots != with_slots[block.get()]) {
      return broken(id, "miscounts who lies below it");
    }
  }
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    const Node& kept = nodes_[node];
    if (counted[node].unused != kept.unused || counted[node].droppable != kept.droppable.size() ||
        counted[node].uncopied != kept.uncopied.size() ||
        counted[node].copied != kept.copied.size()) {
      return absl::InternalError(absl::StrCat("node ", node, " miscounts unused blocks"));
    }
  }
  size_t first = 0;
  for (const auto& [tokens, blocks] : firsts_) {
    first += blocks.size();
    if (!std::is_sorted(blocks.begin(), blocks.end(),
                        [](const auto* a, const auto* b) { return a->node < b->node; })) {
      return absl::InternalError("first blocks are not in the order of their nodes");
    }
  }
  if (slots != with_slots_) {
    return absl::InternalError("blocks with slots are miscounted");
  }
  return first == children[nullptr] ? absl::OkStatus()
                                    : absl::InternalError("a tree has a block of nobody");
}

}  // namespace lamina::core
