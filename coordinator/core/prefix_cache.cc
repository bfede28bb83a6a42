// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/prefix_cache.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/check.h"

namespace lamina::core {
namespace {

const HeldSpans& HeldBy(const Sequence& sequence, SequenceKv& kv) {
  return sequence.held != nullptr ? *sequence.held : *kv.Get(sequence.request.id);
}

// The memory node of the sequence's block at `depth`.
uint32_t NodeAt(const Sequence& sequence, size_t depth, const BlockFinder& finder, SequenceKv& kv) {
  if (!finder.cuts()) {
    return sequence.node;
  }
  const size_t span_blocks = finder.span_tokens() / finder.BlockTokensOn(0);
  return HeldBy(sequence, kv).nodes[depth / span_blocks];
}

// Whether a sequence that is cut has the block's slots for the block's tokens.
bool HasSlotsOf(const CachedBlock& block, const Sequence& sequence, uint32_t span_tokens,
                const SequenceKv& kv) {
  const uint32_t first = block.depth * block.token_count();
  uint32_t behind = first % span_tokens;
  for (const Extent& extent :
       kv.directory().ExtentsOf(HeldSpan(sequence.request.id, first / span_tokens))) {
    if (behind < extent.tokens) {
      const uint32_t slot = KvDirectory::ExtentsOf(*block.slots).front().first_slot;
      return extent.first_slot + behind == slot;
    }
    behind -= extent.tokens;
  }
  return false;
}

// Keeps slots of the sequence for its last blocks, which have none yet: all at once, since these
// follow each other.
void KeepSlots(const Sequence& sequence, uint32_t block_tokens, SequenceKv& kv) {
  const std::vector<CachedBlock*>& blocks = sequence.cached_blocks;
  size_t first = blocks.size();
  while (first > 0 && blocks[first - 1]->slots == nullptr) {
    --first;
  }
  if (first == blocks.size()) {
    return;
  }
  const HeldSpans& held = HeldBy(sequence, kv);
  absl::InlinedVector<OpenSpan*, 16> kept(blocks.size() - first);
  kv.Keep(sequence.request.id, held, static_cast<uint32_t>(first) * block_tokens, block_tokens,
          absl::MakeSpan(kept));
  for (size_t i = 0; i < kept.size(); ++i) {
    blocks[first + i]->slots = kept[i];
    blocks[first + i]->bare =
        held.BareIn(static_cast<uint32_t>(first + i) * block_tokens, block_tokens);
  }
}

}  // namespace

PrefixCache::PrefixCache(SequenceKv& kv, Spills& spills, uint32_t run_tokens)
    : kv_(kv), copies_(tree_, spills, run_tokens), finder_(tree_, copies_) {}

void PrefixCache::Reset(std::vector<uint32_t> block_tokens, bool keeps, uint32_t found_max,
                        bool copies, uint32_t span_tokens) {
  const uint32_t first = block_tokens.empty() ? kCachedBlockTokens : block_tokens.front();
  const bool alike =
      absl::c_all_of(block_tokens, [first](uint32_t tokens) { return tokens == first; });
  const bool fits = span_tokens == 0 || (alike && span_tokens % first == 0);
  copies_.Reset(first);
  tree_.Reset(static_cast<uint32_t>(block_tokens.size()),
              copies && keeps && alike && span_tokens == 0 ? copies_.RunBlocks() : 0);
  finder_.Reset({.block_tokens = std::move(block_tokens),
                 .keeps = keeps && fits,
                 .found_max = found_max,
                 .span_tokens = span_tokens});
}

std::vector<PrefixCache::Saved> PrefixCache::Save() const {
  std::vector<Saved> saved;
  for (const auto& [id, block] : tree_.blocks()) {
    if (block->stored()) {
      const absl::Span<const Extent> slots = KvDirectory::ExtentsOf(*block->slots);
      saved.push_back({.id = id,
                       .parent = block->parent == nullptr ? 0 : block->parent->id,
                       .tokens = block->tokens,
                       .node = block->node,
                       .salt = block->salt,
                       .last_used = block->last_used,
                       .slots = {slots.begin(), slots.end()},
                       .bare = block->bare});
    }
  }
  return saved;
}

void PrefixCache::Restore(const std::vector<Saved>& blocks,
                          const std::vector<std::optional<uint32_t>>& nodes) {
  for (const Saved& saved : blocks) {
    const std::optional<uint32_t> node = nodes[saved.node];
    CachedBlock* const parent = tree_.Find(saved.parent);
    const bool orphan = saved.parent != 0 && parent == nullptr;
    if (!finder_.keeps() || !node || orphan ||
        saved.tokens.size() != finder_.BlockTokensOn(*node)) {
      continue;
    }
    CachedBlock& block = tree_.Insert(saved.id, *node, saved.salt, parent, saved.tokens);
    block.slots = kv_.ClaimKept(*node, saved.slots);
    block.bare = saved.bare;
    tree_.Unuse(block, saved.last_used);
  }
}

void PrefixCache::Forget(uint32_t node) {
  while (CachedBlock* block = tree_.OldestDroppable(node)) {
    Drop(*block);
  }
}

// The block behind the last one that the sequence uses; null: there is none.
CachedBlock* PrefixCache::Next(const Sequence& sequence) const {
  const std::vector<CachedBlock*>& used = sequence.cached_blocks;
  return finder_.Below(sequence, NodeAt(sequence, used.size(), finder_, kv_),
                       used.empty() ? nullptr : used.back(), static_cast<uint32_t>(used.size()));
}

void PrefixCache::Use(CachedBlock& block, Sequence& sequence) {
  tree_.Use(block);
  sequence.cached_blocks.push_back(&block);
}

// From the ends on, without a call for each block of a long way. Where sequences are cut no block
// is away; else none has slots below one that is dropped.
void PrefixCache::Drop(CachedBlock& block) {
  CachedBlock* last = &block;
  for (;;) {
    while (!last->children.empty() && last->children.first()->has_slots) {
      last = last->children.first();
    }
    CachedBlock* const above = last->parent;
    const bool is_it = last == &block;
    tree_.LoseSlots(*last);
    last->maker = 0;
    kv_.ReleaseKept(std::exchange(last->slots, nullptr));
    ++stats_.blocks_dropped;
    copies_.SlotsLost(*last);
    if (is_it) {
      return;
    }
    last = above;
  }
}

CachedBlock& PrefixCache::Hold(Sequence& sequence, CachedBlock* away) {
  const auto depth = static_cast<uint32_t>(sequence.cached_blocks.size());
  CachedBlock* block = away;
  if (block != nullptr) {
    tree_.GainSlots(*block);
  } else {
    CachedBlock* const parent = depth == 0 ? nullptr : sequence.cached_blocks.back();
    const uint32_t node = NodeAt(sequence, depth, finder_, kv_);
    block = &tree_.Insert(++ids_, node, sequence.request.cache_salt, parent,
                          *TokensOfBlock(sequence, depth, finder_.BlockTokensOn(node)));
  }
  sequence.cached_blocks.push_back(block);
  return *block;
}

// Behind those that it uses already.
void PrefixCache::UseFound(Sequence& sequence, uint32_t node, uint32_t tokens) {
  const std::vector<CachedBlock*>& used = sequence.cached_blocks;
  for (uint32_t left = tokens; left > 0; left -= finder_.BlockTokensOn(node)) {
    Use(*finder_.Below(sequence, node, used.empty() ? nullptr : used.back(),
                       static_cast<uint32_t>(used.size())),
        sequence);
  }
}

std::vector<HeldExtent> PrefixCache::Share(Sequence& sequence, uint32_t node, uint32_t tokens) {
  std::vector<HeldExtent> slots;
  const size_t used = sequence.cached_blocks.size();
  UseFound(sequence, node, tokens);
  for (size_t i = used; i < sequence.cached_blocks.size(); ++i) {
    const CachedBlock& block = *sequence.cached_blocks[i];
    for (const HeldExtent& held : kv_.ShareKept(*block.slots, sequence.request.id, block.bare)) {
      slots.push_back(held);
    }
  }
  sequence.cached_tokens += tokens;
  if (sequence.is_new()) {
    sequence.cached_at_first = sequence.cached_tokens;
    stats_.first_found += tokens;
  }
  stats_.tokens_found += tokens;
  return slots;
}

std::vector<HeldExtent> PrefixCache::Join(Sequence& sequence, uint32_t node, bool shares) {
  LAMINA_CHECK(sequence.cached_blocks.empty() && kv_.TokensOf(sequence.request.id) == 0);
  sequence.cached_tokens = 0;
  if (!finder_.Keeps(sequence)) {
    return {};
  }
  stats_.tokens_asked += sequence.tokens();
  if (sequence.is_new()) {
    stats_.first_asked += sequence.tokens();
  }
  return Share(sequence, node, shares ? Find(sequence, node).tokens : 0);
}

std::vector<HeldExtent> PrefixCache::JoinNextSpan(Sequence& sequence) {
  const uint32_t there = kv_.TokensOf(sequence.request.id);
  if (sequence.cached_tokens < there || !finder_.Keeps(sequence)) {
    return {};
  }
  const uint32_t node = NodeAt(sequence, sequence.cached_blocks.size(), finder_, kv_);
  const auto found = finder_.FindInSpan(sequence, sequence.cached_blocks.back(), there);
  return Share(sequence, node, found[node].found.tokens);
}

std::vector<PrefixCache::Read> PrefixCache::ReadBack(Sequence& sequence, uint32_t away) {
  std::vector<Read> reads;
  const uint32_t block_tokens = finder_.BlockTokensOn(sequence.node);
  for (uint32_t tokens = 0; tokens < away; tokens += block_tokens) {
    CachedBlock& block = *Next(sequence);
    const uint32_t in_run = block.depth % tree_.copied_blocks() * block_tokens;
    const bool continues = in_run > 0 && !reads.empty();
    if (!continues) {
      reads.push_back({.first = block.depth * block_tokens, .skip = in_run});
    }
    // The copy of its last block has those above it in the run.
    const uint64_t copy = copies_.ReadableFor(block);
    LAMINA_CHECK(copy != 0);
    reads.back().copy = copy;
    reads.back().tokens += block_tokens;
    Hold(sequence, &block).maker = sequence.request.id;
  }
  KeepSlots(sequence, block_tokens, kv_);
  for (const Read& read : reads) {
    copies_.BeginRead(read.copy);
  }
  sequence.cached_tokens += away;
  if (sequence.is_new()) {
    sequence.cached_at_first = sequence.cached_tokens;
    stats_.first_found += away;
  }
  stats_.tokens_found += away;
  stats_.tokens_read += away;
  return reads;
}

void PrefixCache::Announce(Sequence& sequence) {
  if (!finder_.Keeps(sequence)) {
    return;
  }
  // Blocks behind the slots that it joins with are kept once they are stored.
  const uint32_t block_tokens = finder_.BlockTokensOn(sequence.node);
  const uint32_t depth_max =
      std::min(sequence.join_tokens, kv_.TokensOf(sequence.request.id)) / block_tokens;
  while (sequence.cached_blocks.size() < depth_max) {
    CachedBlock* const block = Next(sequence);
    if (block == nullptr || !block->has_slots) {
      Hold(sequence, block).maker = sequence.request.id;
    } else if (block->stored() &&
               (finder_.cuts() ? HasSlotsOf(*block, sequence, finder_.span_tokens(), kv_)
                               : sequence.cached_tokens == 0)) {
      Use(*block, sequence);  // It shares no slots, and computes the tokens anew; cut, it has them.
    } else {
      break;  // Somebody else makes it, or has made the last token's.
    }
  }
  KeepSlots(sequence, block_tokens, kv_);
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

// One that is cut may join without what it finds. Used as well that would not come free before it
// leaves, and it could never go on where it needs the room itself.
void PrefixCache::Stored(Sequence& sequence, uint32_t tokens, bool leaves) {
  if (!finder_.Keeps(sequence)) {
    return;
  }
  for (const CachedBlock* block : sequence.cached_blocks) {
    __builtin_prefetch(block);  // Each may have been left alone since it was made.
  }
  const uint32_t block_tokens = finder_.BlockTokensOn(sequence.node);
  const uint32_t depth_max = tokens / block_tokens;
  for (uint32_t depth = 0; depth < depth_max; ++depth) {
    if (depth < sequence.cached_blocks.size()) {
      CachedBlock& block = *sequence.cached_blocks[depth];
      block.maker = block.maker == sequence.request.id ? 0 : block.maker;
      continue;
    }
    CachedBlock* block = Next(sequence);
    if (block == nullptr || !block->has_slots) {
      Hold(sequence, block);
    } else if (block->stored() && (!finder_.cuts() || leaves ||
                                   HasSlotsOf(*block, sequence, finder_.span_tokens(), kv_))) {
      Use(*block, sequence);  // Somebody has stored the same tokens.
    } else {
      break;
    }
  }
  KeepSlots(sequence, block_tokens, kv_);
}

void PrefixCache::Leave(Sequence& sequence) {
  ++clock_;
  while (!sequence.cached_blocks.empty()) {
    CachedBlock& block = *sequence.cached_blocks.back();
    sequence.cached_blocks.pop_back();
    tree_.Unuse(block, clock_);
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
    tree_.Unuse(block, clock_);
    if (block.droppable()) {
      Drop(block);
    }
  }
}

void PrefixCache::MakeRoom(uint32_t node, uint64_t slots) {
  const KvDirectory& directory = kv_.directory();
  while (uint64_t{directory.SlotsFree(node)} + directory.SlotsQuarantined(node) +
             copies_.SlotsLeaving(node) <
         slots) {
    CachedBlock* const block = tree_.OldestDroppable(node);
    if (block == nullptr) {
      return;
    }
    Drop(*block);
  }
}

uint64_t PrefixCache::UnusedFor(uint32_t node) const {
  const std::optional<uint64_t> oldest = tree_.OldestUse(node);
  return oldest ? clock_ - *oldest : 0;
}

void PrefixCache::MakeRoomFor(Sequence& sequence, uint32_t node, uint64_t slots) {
  UseFound(sequence, node, Find(sequence, node).tokens);
  MakeRoom(node, slots);
  Leave(sequence);
}

void PrefixCache::MakeRoomForSpans(Sequence& sequence, absl::Span<const uint32_t> nodes,
                                   uint32_t tokens, absl::Span<const uint64_t> wanted) {
  uint32_t left = tokens;
  for (size_t span = 0; left > 0; ++span) {
    const uint32_t found = std::min(left, finder_.span_tokens());
    UseFound(sequence, nodes[span], found);
    left -= found;
  }
  for (uint32_t node = 0; node < wanted.size(); ++node) {
    MakeRoom(node, wanted[node]);
  }
  Leave(sequence);
}

void PrefixCache::CopyOut(plan::StepPlan& plan) {
  if (tree_.copied_blocks() == 0) {
    return;
  }
  for (uint32_t node = 0; node < tree_.nodes(); ++node) {
    const KvPoolStats stats = kv_.directory().Stats(node);
    copies_.Copy(node, kv_.directory().SlotsFree(node), stats.slots_total, plan);
  }
}

absl::Status PrefixCache::Audit(const std::vector<Sequence*>& running) const {
  std::map<const CachedBlock*, uint32_t> users;
  const auto broken = [](uint64_t id, absl::string_view what) {
    return absl::InternalError(absl::StrCat("cached block ", id, ": ", what));
  };
  for (const Sequence* sequence : running) {
    const CachedBlock* parent = nullptr;
    for (uint32_t depth = 0; depth < sequence->cached_blocks.size(); ++depth) {
      const CachedBlock* block = sequence->cached_blocks[depth];
      ++users[block];
      if (block->parent != parent || block->node != NodeAt(*sequence, depth, finder_, kv_) ||
          block->tokens != *TokensOfBlock(*sequence, depth, finder_.BlockTokensOn(block->node))) {
        return broken(block->id, "is used by a sequence with other tokens");
      }
      if (!block->stored() && block->maker != sequence->request.id) {
        return broken(block->id, "is used before it is stored");
      }
      parent = block;
    }
  }
  for (const auto& [id, block] : tree_.blocks()) {
    if (block->has_slots != (block->slots != nullptr)) {
      return broken(id, "has slots and none, or the reverse");
    }
    if (block->has_slots && (KvDirectory::TokensOf(*block->slots) != block->token_count() ||
                             KvDirectory::NodeOf(*block->slots) != block->node)) {
      return broken(id, "has more or fewer slots than tokens, or elsewhere");
    }
    if (block->users != users[block]) {
      return broken(id, "miscounts who uses it");
    }
  }
  const absl::Status tree = tree_.Audit();
  return tree.ok() ? copies_.Audit() : tree;
}

}  // namespace lamina::core
