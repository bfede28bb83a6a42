// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/block_tree.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina::core {

bool BlockTree::FirstKey::operator<(const FirstKey& other) const {
  const auto order = std::lexicographical_compare_three_way(
      tokens.begin(), tokens.end(), other.tokens.begin(), other.tokens.end());
  if (order != 0) {
    return order < 0;
  }
  const int salts = salt.compare(other.salt);
  return salts != 0 ? salts < 0 : node < other.node;
}

void BlockTree::Reset(uint32_t nodes, uint32_t copied_blocks) {
  copied_blocks_ = copied_blocks;
  with_slots_ = 0;
  nodes_.assign(nodes, {});
  firsts_.clear();
  blocks_.clear();
  pool_.Clear();
}

CachedBlock* BlockTree::Find(uint64_t id) const {
  const auto found = blocks_.find(id);
  return found == blocks_.end() ? nullptr : found->second;
}

CachedBlock* BlockTree::FirstOn(uint32_t node, Tokens tokens, absl::string_view salt) const {
  const auto first = firsts_.find(FirstKey{.tokens = tokens, .salt = salt, .node = node});
  return first == firsts_.end() ? nullptr : *first;
}

void BlockTree::VisitFirsts(Tokens tokens, absl::string_view salt,
                            absl::FunctionRef<void(const CachedBlock&)> visit) const {
  for (auto first = firsts_.lower_bound(FirstKey{.tokens = tokens, .salt = salt});
       first != firsts_.end() && (*first)->tokens == tokens && (*first)->salt == salt; ++first) {
    visit(**first);
  }
}

CachedBlock& BlockTree::Insert(uint64_t id, uint32_t node, const std::string& salt,
                               CachedBlock* parent, Tokens tokens) {
  CachedBlock& block = pool_.Take();
  block.id = id;
  block.node = node;
  block.parent = parent;
  block.tokens.assign(tokens.begin(), tokens.end());
  if (parent != nullptr) {
    block.depth = parent->depth + 1;
    parent->children.Insert(block);
  } else {
    block.salt = salt;
    LAMINA_CHECK(firsts_.insert(&block).second);
  }
  LAMINA_CHECK(blocks_.empty() || blocks_.rbegin()->first < id);
  blocks_.emplace_hint(blocks_.end(), id, &block);
  GainSlots(block);
  return block;
}

void BlockTree::GainSlots(CachedBlock& block) {
  LAMINA_CHECK(!block.has_slots && block.users == 0 && block.children_with_slots == 0);
  if (CachedBlock* parent = block.parent; parent != nullptr) {
    LAMINA_CHECK(parent->has_slots);
    if (parent->node == block.node) {
      if (parent->droppable()) {
        nodes_[parent->node].droppable.erase(FromBelow(*parent));
      }
      ++parent->children_with_slots;
    }
  }
  block.has_slots = true;
  block.users = 1;
  ++with_slots_;
}

void BlockTree::LoseSlots(CachedBlock& block) {
  LAMINA_CHECK(block.droppable());
  Unlist(block);
  Node& node = nodes_[block.node];
  node.unused -= block.token_count();
  block.has_slots = false;
  List(block);
  --with_slots_;
  if (CachedBlock* parent = block.parent; parent != nullptr && parent->node == block.node) {
    --parent->children_with_slots;
    if (parent->droppable()) {
      node.droppable.emplace(FromBelow(*parent), parent);
    }
  }
}

void BlockTree::Use(CachedBlock& block) {
  LAMINA_CHECK(block.has_slots);
  if (block.users == 0) {
    Node& node = nodes_[block.node];
    node.unused -= block.token_count();
    if (block.droppable()) {
      node.droppable.erase(FromBelow(block));
    }
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
  nodes_[block.node].unused += block.users == 0 ? block.token_count() : 0;
  block.last_used = now;
  List(block);
}

void BlockTree::Erase(CachedBlock& block) {
  LAMINA_CHECK(!block.has_slots && block.children.empty() && block.copies.empty());
  if (block.parent != nullptr) {
    block.parent->children.Erase(block);
  } else {
    LAMINA_CHECK(firsts_.erase(&block) == 1);
  }
  blocks_.erase(block.id);
  pool_.Give(block);
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
    node.droppable.emplace(FromBelow(block), &block);
  }
  if (IsUncopied(block)) {
    node.uncopied.emplace(FromAbove(block), &block);
  } else if (EndsRun(block) && !block.copies.empty()) {
    node.copied.emplace(FromBelow(block), &block);
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
    if ((parent == nullptr ? FirstOn(block->node, block->tokens, block->salt)
                           : parent->children.Find(block->tokens, block->node)) != block) {
      return broken(id, "is not found by its tokens");
    }
    ++children[parent];
    const bool on_its_node = parent == nullptr || parent->node == block->node;
    with_slots[parent] += block->has_slots && on_its_node ? 1 : 0;
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
    count.unused += block->has_slots && block->users == 0 ? block->token_count() : 0;
    count.droppable += block->droppable() ? 1 : 0;
    count.uncopied += IsUncopied(*block) ? 1 : 0;
    count.copied += ends_copy ? 1 : 0;
    const auto misses = [&](const Places& places, const Place& place) {
      const auto found = places.find(place);
      return found == places.end() || found->second != block;
    };
    if ((block->droppable() && misses(node.droppable, FromBelow(*block))) ||
        (IsUncopied(*block) && misses(node.uncopied, FromAbove(*block))) ||
        (ends_copy && misses(node.copied, FromBelow(*block)))) {
      return broken(id, "is not found to be dropped or copied");
    }
  }
  for (const auto& [id, block] : blocks_) {
    if (block->children.size() != children[block] ||
        block->children_with_slots != with_slots[block]) {
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
  if (pool_.taken() != blocks_.size()) {
    return absl::InternalError("a block is in no tree");
  }
  if (slots != with_slots_) {
    return absl::InternalError("blocks with slots are miscounted");
  }
  return firsts_.size() == children[nullptr] ? absl::OkStatus()
                                             : absl::InternalError("a tree has a block of nobody");
}

}  // namespace lamina::core
