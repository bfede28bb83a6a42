// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/prefix_cache.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina::core {
namespace {

// No node knows of blocks, so that nothing is waited for when one is dropped.
constexpr uint64_t kDropTicket = UINT64_MAX;

SlotHolder HolderOf(uint64_t block) { return {HolderKind::kCachedBlock, block}; }

// Where the block on this node is among blocks that are sorted by node, or would be.
template <typename Blocks>
auto OnNode(Blocks& blocks, uint32_t node) {
  return std::lower_bound(blocks.begin(), blocks.end(), node,
                          [](const auto* block, uint32_t of) { return block->node() < of; });
}

}  // namespace

struct CachedBlock {
  uint64_t id = 0;
  PrefixCache::Tokens tokens{};
  PrefixCache::Tree tree;
  CachedBlock* parent = nullptr;  // Null for the first one on its way.
  PrefixCache::Children children;
  uint32_t users = 0;  // Running sequences.
  uint64_t last_used = 0;
  plan::SequenceId maker = 0;  // While it is pending.

  uint32_t node() const { return tree.first; }
  bool stored() const { return maker == 0; }
  bool droppable() const { return users == 0 && children.empty(); }
};

PrefixCache::PrefixCache(SequenceKv& kv, uint32_t block_tokens)
    : kv_(kv), block_tokens_(block_tokens) {}
PrefixCache::~PrefixCache() = default;

void PrefixCache::Reset(uint32_t memory_nodes, bool keeps, uint32_t found_max) {
  found_max_ = found_max;
  keeps_ = keeps;
  nodes_.assign(memory_nodes, {});
  firsts_.clear();
  blocks_.clear();
}

std::vector<PrefixCache::Saved> PrefixCache::Save() const {
  std::vector<Saved> saved;
  for (const auto& [id, block] : blocks_) {
    if (block->stored()) {
      const absl::Span<const Extent> slots = kv_.directory().ExtentsOf(HolderOf(id));
      saved.push_back({.id = id,
                       .parent = block->parent == nullptr ? 0 : block->parent->id,
                       .tokens = block->tokens,
                       .node = block->node(),
                       .salt = block->tree.second,
                       .last_used = block->last_used,
                       .slots = {slots.begin(), slots.end()}});
    }
  }
  return saved;
}

void PrefixCache::Restore(const std::vector<Saved>& blocks,
                          const std::vector<std::optional<uint32_t>>& nodes) {
  for (const Saved& saved : blocks) {
    const std::optional<uint32_t> node = nodes[saved.node];
    const auto parent = blocks_.find(saved.parent);
    if (!keeps_ || !node || (saved.parent != 0 && parent == blocks_.end())) {
      continue;
    }
    kv_.Claim(HolderOf(saved.id), *node, saved.slots);
    CachedBlock& block = Insert(saved.id, {*node, saved.salt},
                                saved.parent == 0 ? nullptr : parent->second.get(), saved.tokens);
    block.last_used = saved.last_used;
    nodes_[*node].droppable.emplace(block.last_used, block.id);
  }
}

void PrefixCache::Forget(uint32_t node) {
  auto& droppable = nodes_[node].droppable;
  while (!droppable.empty()) {
    Drop(*blocks_.at(droppable.begin()->second));
  }
}

bool PrefixCache::Keeps(const Sequence& sequence) const {
  const bool whole = sequence.held == nullptr || sequence.held->released == 0;
  return keeps_ && !sequence.request.score && !sequence.request.lossy && whole;
}

PrefixCache::Tokens PrefixCache::TokensAt(const Sequence& sequence, uint32_t first) const {
  const std::vector<TokenId>& prompt = sequence.request.prompt;
  Tokens tokens(block_tokens_);
  for (uint32_t i = 0; i < block_tokens_; ++i) {
    const size_t at = first + i;
    tokens[i] = at < prompt.size() ? prompt[at] : sequence.committed[at - prompt.size()];
  }
  return tokens;
}

// The blocks with the sequence's first tokens on all nodes; null: there are none.
const std::vector<CachedBlock*>* PrefixCache::FirstBlocks(const Sequence& sequence) const {
  const auto found = firsts_.find({TokensAt(sequence, 0), sequence.request.cache_salt});
  return found == firsts_.end() ? nullptr : &found->second;
}

// The block with the sequence's tokens at `depth`; null: there is none.
CachedBlock* PrefixCache::Below(const Sequence& sequence, uint32_t node, const CachedBlock* parent,
                                uint32_t depth) const {
  if (parent == nullptr) {
    const std::vector<CachedBlock*>* firsts = FirstBlocks(sequence);
    if (firsts == nullptr) {
      return nullptr;
    }
    const auto first = OnNode(*firsts, node);
    return first != firsts->end() && (*first)->node() == node ? *first : nullptr;
  }
  const auto found = parent->children.find(TokensAt(sequence, depth * block_tokens_));
  return found == parent->children.end() ? nullptr : found->second;
}

// How many of its blocks a sequence may find.
uint32_t PrefixCache::DepthOf(const Sequence& sequence) const {
  return std::min(sequence.tokens() - 1, found_max_) / block_tokens_;
}

PrefixCache::Found PrefixCache::Find(const Sequence& sequence, uint32_t node) const {
  if (!Keeps(sequence) || DepthOf(sequence) == 0) {
    return {};
  }
  return FindFrom(sequence, node, Below(sequence, node, nullptr, 0));
}

std::vector<PrefixCache::Found> PrefixCache::FindOnNodes(const Sequence& sequence) const {
  std::vector<Found> found(nodes_.size());
  if (!Keeps(sequence) || DepthOf(sequence) == 0) {
    return found;
  }
  if (const std::vector<CachedBlock*>* firsts = FirstBlocks(sequence); firsts != nullptr) {
    for (const CachedBlock* first : *firsts) {
      found[first->node()] = FindFrom(sequence, first->node(), first);
    }
  }
  return found;
}

PrefixCache::Found PrefixCache::FindFrom(const Sequence& sequence, uint32_t node,
                                         const CachedBlock* first) const {
  Found found;
  const uint32_t depth_max = DepthOf(sequence);
  const CachedBlock* block = first;
  for (uint32_t depth = 0; depth < depth_max && block != nullptr; ++depth) {
    if (depth > 0) {
      block = Below(sequence, node, block, depth);
    }
    if (block == nullptr) {
      break;
    }
    if (!block->stored()) {
      found.pending += block_tokens_;
      continue;
    }
    LAMINA_CHECK(found.pending == 0 && "what is below a pending block is pending");
    found.tokens += block_tokens_;
    found.unused += block->users == 0 ? block_tokens_ : 0;
  }
  return found;
}

void PrefixCache::Use(CachedBlock& block, Sequence& sequence) {
  if (block.users == 0) {
    Node& node = nodes_[block.node()];
    node.unused -= block_tokens_;
    node.droppable.erase({block.last_used, block.id});
  }
  ++block.users;
  sequence.cached_blocks.push_back(&block);
}

void PrefixCache::Unuse(CachedBlock& block) {
  LAMINA_CHECK(block.users > 0);
  block.last_used = clock_;
  if (--block.users == 0) {
    Node& node = nodes_[block.node()];
    node.unused += block_tokens_;
    if (block.droppable()) {
      node.droppable.emplace(block.last_used, block.id);
    }
  }
}

void PrefixCache::Drop(CachedBlock& block) {
  LAMINA_CHECK(block.droppable());
  Node& node = nodes_[block.node()];
  node.unused -= block_tokens_;
  node.droppable.erase({block.last_used, block.id});
  kv_.Release(HolderOf(block.id), kDropTicket);
  kv_.Recycle(kDropTicket);
  if (CachedBlock* parent = block.parent; parent != nullptr) {
    parent->children.erase(block.tokens);
    if (parent->droppable()) {
      node.droppable.emplace(parent->last_used, parent->id);
    }
  } else {
    const auto first = firsts_.find({block.tokens, block.tree.second});
    first->second.erase(OnNode(first->second, block.node()));
    if (first->second.empty()) {
      firsts_.erase(first);
    }
  }
  ++stats_.blocks_dropped;
  blocks_.erase(block.id);
}

// A block that nobody uses yet, and which has its slots.
CachedBlock& PrefixCache::Insert(uint64_t id, const Tree& tree, CachedBlock* parent,
                                 const Tokens& tokens) {
  auto block = std::make_unique<CachedBlock>();
  block->id = id;
  block->tree = tree;
  block->parent = parent;
  block->tokens = tokens;
  if (parent != nullptr && parent->droppable()) {
    nodes_[parent->node()].droppable.erase({parent->last_used, parent->id});
  }
  CachedBlock& inserted = *block;
  if (parent != nullptr) {
    parent->children.emplace(tokens, &inserted);
  } else {
    std::vector<CachedBlock*>& firsts = firsts_[{tokens, tree.second}];
    firsts.insert(OnNode(firsts, tree.first), &inserted);
  }
  nodes_[inserted.node()].unused += block_tokens_;
  blocks_.emplace(id, std::move(block));
  return inserted;
}

// The block behind the last one that the sequence uses, with its own slots.
CachedBlock& PrefixCache::Add(Sequence& sequence, uint32_t depth) {
  CachedBlock* const parent =
      sequence.cached_blocks.empty() ? nullptr : sequence.cached_blocks.back();
  const uint32_t first = depth * block_tokens_;
  const uint64_t id = ++ids_;
  kv_.Open(HolderOf(id));
  kv_.BeginSpan(HolderOf(id), sequence.node);
  kv_.Share(sequence.request.id, first, block_tokens_, HolderOf(id));
  CachedBlock& added =
      Insert(id, {sequence.node, sequence.request.cache_salt}, parent, TokensAt(sequence, first));
  Use(added, sequence);
  return added;
}

void PrefixCache::UseFound(Sequence& sequence, uint32_t node, uint32_t tokens) {
  for (uint32_t depth = 0; depth * block_tokens_ < tokens; ++depth) {
    const CachedBlock* parent = depth == 0 ? nullptr : sequence.cached_blocks.back();
    Use(*Below(sequence, node, parent, depth), sequence);
  }
}

std::vector<HeldExtent> PrefixCache::Join(Sequence& sequence, uint32_t node) {
  LAMINA_CHECK(sequence.cached_blocks.empty() && kv_.TokensOf(sequence.request.id) == 0);
  std::vector<HeldExtent> slots;
  sequence.cached_tokens = 0;
  if (!Keeps(sequence)) {
    return slots;
  }
  sequence.cached_tokens = Find(sequence, node).tokens;
  if (sequence.committed.empty()) {
    sequence.cached_at_first = sequence.cached_tokens;
  }
  UseFound(sequence, node, sequence.cached_tokens);
  for (const CachedBlock* block : sequence.cached_blocks) {
    for (const HeldExtent& held :
         kv_.Share(HolderOf(block->id), 0, block_tokens_, sequence.request.id)) {
      slots.push_back(held);
    }
  }
  stats_.tokens_asked += sequence.tokens();
  stats_.tokens_found += sequence.cached_tokens;
  return slots;
}

void PrefixCache::Announce(Sequence& sequence) {
  if (!Keeps(sequence)) {
    return;
  }
  // Blocks behind the slots that it joins with are kept once they are stored.
  const uint32_t depth_max =
      std::min(sequence.join_tokens, kv_.TokensOf(sequence.request.id)) / block_tokens_;
  for (auto depth = static_cast<uint32_t>(sequence.cached_blocks.size()); depth < depth_max;
       ++depth) {
    if (Below(sequence, sequence.node, depth == 0 ? nullptr : sequence.cached_blocks.back(),
              depth) != nullptr) {
      return;  // Somebody else makes it, or has made the last token's.
    }
    Add(sequence, depth).maker = sequence.request.id;
  }
}

void PrefixCache::JoinFork(Sequence& fork, const Sequence& parent) {
  fork.cached_tokens = parent.cached_tokens;
  fork.cached_at_first = parent.cached_at_first;
  for (CachedBlock* block : parent.cached_blocks) {
    if (!block->stored()) {
      return;
    }
    Use(*block, fork);
  }
}

void PrefixCache::Stored(Sequence& sequence, uint32_t tokens) {
  if (!Keeps(sequence)) {
    return;
  }
  const uint32_t depth_max = tokens / block_tokens_;
  for (uint32_t depth = 0; depth < depth_max; ++depth) {
    if (depth < sequence.cached_blocks.size()) {
      CachedBlock& block = *sequence.cached_blocks[depth];
      block.maker = block.maker == sequence.request.id ? 0 : block.maker;
      continue;
    }
    CachedBlock* block =
        Below(sequence, sequence.node, depth == 0 ? nullptr : sequence.cached_blocks.back(), depth);
    if (block == nullptr) {
      Add(sequence, depth);
    } else if (block->stored()) {
      Use(*block, sequence);  // Somebody has stored the same tokens.
    } else {
      return;
    }
  }
}

void PrefixCache::Leave(Sequence& sequence) {
  ++clock_;
  while (!sequence.cached_blocks.empty()) {
    CachedBlock& block = *sequence.cached_blocks.back();
    sequence.cached_blocks.pop_back();
    Unuse(block);
    if (block.maker == sequence.request.id) {
      Drop(block);
    }
  }
}

void PrefixCache::Forget(Sequence& sequence) {
  ++clock_;
  while (!sequence.cached_blocks.empty()) {
    CachedBlock& block = *sequence.cached_blocks.back();
    sequence.cached_blocks.pop_back();
    Unuse(block);
    if (block.droppable()) {
      Drop(block);
    }
  }
}

void PrefixCache::MakeRoom(uint32_t node, uint64_t slots) {
  const KvDirectory& directory = kv_.directory();
  auto& droppable = nodes_[node].droppable;
  while (!droppable.empty() &&
         uint64_t{directory.SlotsFree(node)} + directory.SlotsQuarantined(node) < slots) {
    Drop(*blocks_.at(droppable.begin()->second));
  }
}

uint64_t PrefixCache::UnusedFor(uint32_t node) const {
  const auto& droppable = nodes_[node].droppable;
  return droppable.empty() ? 0 : clock_ - droppable.begin()->first;
}

void PrefixCache::MakeRoomFor(Sequence& sequence, uint32_t node, uint64_t slots) {
  UseFound(sequence, node, Find(sequence, node).tokens);
  MakeRoom(node, slots);
  Leave(sequence);
}

absl::Status PrefixCache::Audit(const std::vector<Sequence*>& running) const {
  std::map<const CachedBlock*, uint32_t> users;
  std::map<const CachedBlock*, size_t> children;
  std::vector<uint32_t> unused(nodes_.size());
  std::vector<size_t> droppable(nodes_.size());
  const auto broken = [](uint64_t id, absl::string_view what) {
    return absl::InternalError(absl::StrCat("cached block ", id, ": ", what));
  };
  for (const Sequence* sequence : running) {
    const CachedBlock* parent = nullptr;
    for (uint32_t depth = 0; depth < sequence->cached_blocks.size(); ++depth) {
      const CachedBlock* block = sequence->cached_blocks[depth];
      ++users[block];
      if (block->parent != parent || block->node() != sequence->node ||
          block->tokens != TokensAt(*sequence, depth * block_tokens_)) {
        return broken(block->id, "is used by a sequence with other tokens");
      }
      if (!block->stored() && block->maker != sequence->request.id) {
        return broken(block->id, "is used before it is stored");
      }
      parent = block;
    }
  }
  for (const auto& [id, block] : blocks_) {
    ++children[block->parent];
    if (!block->stored() && block->users != 1) {
      return broken(id, "is pending, and nobody makes it");
    }
    if (block->parent != nullptr && !block->parent->stored() && block->stored()) {
      return broken(id, "is stored below one that is not");
    }
    if (kv_.TokensOf(HolderOf(id)) != block_tokens_) {
      return broken(id, "has more or fewer slots than tokens");
    }
  }
  for (const auto& [id, block] : blocks_) {
    if (block->users != users[block.get()] || block->children.size() != children[block.get()]) {
      return broken(id, "miscounts who uses it or lies below it");
    }
    unused[block->node()] += block->users == 0 ? block_tokens_ : 0;
    if (block->droppable()) {
      ++droppable[block->node()];
      if (!nodes_[block->node()].droppable.contains({block->last_used, id})) {
        return broken(id, "is not found to be dropped");
      }
    }
  }
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    if (unused[node] != nodes_[node].unused || droppable[node] != nodes_[node].droppable.size()) {
      return absl::InternalError(absl::StrCat("node ", node, " miscounts unused blocks"));
    }
  }
  size_t first = 0;
  for (const auto& [tokens, blocks] : firsts_) {
    first += blocks.size();
    if (!std::is_sorted(blocks.begin(), blocks.end(),
                        [](const auto* a, const auto* b) { return a->node() < b->node(); })) {
      return absl::InternalError("first blocks are not in the order of their nodes");
    }
  }
  return first == children[nullptr] ? absl::OkStatus()
                                    : absl::InternalError("a tree has a block of nobody");
}

}  // namespace lamina::core
