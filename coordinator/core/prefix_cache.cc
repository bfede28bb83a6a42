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

// Tokens of a sequence's block, where they lie; put together if the block begins in the prompt and
// ends behind it. Valid as long as this and the sequence are.
class TokensAt {
 public:
  TokensAt(const Sequence& sequence, uint32_t depth, uint32_t block_tokens) {
    const std::vector<TokenId>& prompt = sequence.request.prompt;
    const std::vector<TokenId>& committed = sequence.committed;
    const size_t first = size_t{depth} * block_tokens;
    if (first >= prompt.size()) {
      tokens_ = absl::MakeConstSpan(committed).subspan(first - prompt.size(), block_tokens);
    } else if (first + block_tokens <= prompt.size()) {
      tokens_ = absl::MakeConstSpan(prompt).subspan(first, block_tokens);
    } else {
      const size_t behind = first + block_tokens - prompt.size();
      LAMINA_CHECK(behind <= committed.size());
      joined_.assign(prompt.begin() + static_cast<ptrdiff_t>(first), prompt.end());
      joined_.insert(joined_.end(), committed.begin(),
                     committed.begin() + static_cast<ptrdiff_t>(behind));
      tokens_ = joined_;
    }
    LAMINA_CHECK(tokens_.size() == block_tokens);
  }
  TokensAt(const TokensAt&) = delete;
  TokensAt& operator=(const TokensAt&) = delete;

  absl::Span<const TokenId> operator*() const { return tokens_; }

 private:
  CachedBlock::Tokens joined_;
  absl::Span<const TokenId> tokens_;
};

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
  const HeldSpans& held = sequence.held != nullptr ? *sequence.held : *kv.Get(sequence.request.id);
  absl::InlinedVector<OpenSpan*, 16> kept(blocks.size() - first);
  kv.Keep(held, static_cast<uint32_t>(first) * block_tokens, block_tokens, absl::MakeSpan(kept));
  for (size_t i = 0; i < kept.size(); ++i) {
    blocks[first + i]->slots = kept[i];
    blocks[first + i]->bare =
        held.BareIn(static_cast<uint32_t>(first + i) * block_tokens, block_tokens);
  }
}

}  // namespace

PrefixCache::PrefixCache(SequenceKv& kv, Spills& spills, uint32_t run_tokens)
    : kv_(kv), copies_(tree_, spills, run_tokens) {}

void PrefixCache::Reset(std::vector<uint32_t> block_tokens, bool keeps, uint32_t found_max,
                        bool copies) {
  block_tokens_ = std::move(block_tokens);
  found_max_ = found_max;
  keeps_ = keeps;
  const uint32_t first = block_tokens_.empty() ? kCachedBlockTokens : block_tokens_.front();
  const bool alike =
      absl::c_all_of(block_tokens_, [first](uint32_t tokens) { return tokens == first; });
  copies_.Reset(first);
  tree_.Reset(static_cast<uint32_t>(block_tokens_.size()),
              copies && keeps && alike ? copies_.RunBlocks() : 0);
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
    if (!keeps_ || !node || orphan || saved.tokens.size() != block_tokens_[*node]) {
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

bool PrefixCache::Keeps(const Sequence& sequence) const {
  const bool whole = sequence.held == nullptr || sequence.held->released == 0;
  return keeps_ && !sequence.request.score && !sequence.request.lossy && whole;
}

// The block with the sequence's tokens at `depth`; null: there is none.
CachedBlock* PrefixCache::Below(const Sequence& sequence, uint32_t node, const CachedBlock* parent,
                                uint32_t depth) const {
  const TokensAt tokens(sequence, depth, block_tokens_[node]);
  return parent == nullptr ? tree_.FirstOn(node, *tokens, sequence.request.cache_salt)
                           : parent->children.Find(*tokens);
}

// The block behind the last one that the sequence uses; null: there is none.
CachedBlock* PrefixCache::Next(const Sequence& sequence) const {
  const std::vector<CachedBlock*>& used = sequence.cached_blocks;
  return Below(sequence, sequence.node, used.empty() ? nullptr : used.back(),
               static_cast<uint32_t>(used.size()));
}

// How many blocks of so many tokens a sequence may find.
uint32_t PrefixCache::DepthOf(const Sequence& sequence, uint32_t block_tokens) const {
  return std::min(sequence.tokens() - 1, found_max_) / block_tokens;
}

PrefixCache::Found PrefixCache::Find(const Sequence& sequence, uint32_t node) const {
  if (!Keeps(sequence) || DepthOf(sequence, block_tokens_[node]) == 0) {
    return {};
  }
  return FindFrom(sequence, Below(sequence, node, nullptr, 0));
}

std::vector<PrefixCache::Found> PrefixCache::FindOnNodes(const Sequence& sequence) const {
  std::vector<Found> found(tree_.nodes());
  if (!Keeps(sequence)) {
    return found;
  }
  absl::InlinedVector<uint32_t, 2> sizes;
  for (const uint32_t tokens : block_tokens_) {
    if (!absl::c_linear_search(sizes, tokens)) {
      sizes.push_back(tokens);
    }
  }
  for (const uint32_t tokens : sizes) {
    if (DepthOf(sequence, tokens) > 0) {
      tree_.VisitFirsts(
          *TokensAt(sequence, 0, tokens), sequence.request.cache_salt,
          [&](const CachedBlock& first) { found[first.node] = FindFrom(sequence, &first); });
    }
  }
  return found;
}

PrefixCache::Found PrefixCache::FindFrom(const Sequence& sequence, const CachedBlock* first) const {
  Found found;
  if (first == nullptr) {
    return found;
  }
  const uint32_t block_tokens = first->token_count();
  const uint32_t depth_max = DepthOf(sequence, block_tokens);
  const CachedBlock* block = first;
  for (uint32_t depth = 0; depth < depth_max; ++depth) {
    if (depth > 0) {
      block = block->children.Find(*TokensAt(sequence, depth, block_tokens));
    }
    if (block == nullptr) {
      break;
    }
    if (!block->has_slots) {
      if (found.pending > 0 || copies_.ReadableFor(*block) == 0) {
        break;
      }
      found.away += block_tokens;
      continue;
    }
    if (!block->stored()) {
      found.pending += block_tokens;
      continue;
    }
    LAMINA_CHECK(found.pending == 0 && "what is below a pending block is pending");
    found.tokens += block_tokens;
    found.unused += block->users == 0 ? block_tokens : 0;
  }
  return found;
}

void PrefixCache::Use(CachedBlock& block, Sequence& sequence) {
  tree_.Use(block);
  sequence.cached_blocks.push_back(&block);
}

void PrefixCache::Drop(CachedBlock& block) {
  tree_.LoseSlots(block);
  block.maker = 0;
  kv_.ReleaseKept(std::exchange(block.slots, nullptr));
  ++stats_.blocks_dropped;
  copies_.SlotsLost(block);
}

CachedBlock& PrefixCache::Hold(Sequence& sequence, CachedBlock* away) {
  const auto depth = static_cast<uint32_t>(sequence.cached_blocks.size());
  CachedBlock* block = away;
  if (block != nullptr) {
    tree_.GainSlots(*block);
  } else {
    CachedBlock* const parent = depth == 0 ? nullptr : sequence.cached_blocks.back();
    block = &tree_.Insert(++ids_, sequence.node, sequence.request.cache_salt, parent,
                          *TokensAt(sequence, depth, block_tokens_[sequence.node]));
  }
  sequence.cached_blocks.push_back(block);
  return *block;
}

void PrefixCache::UseFound(Sequence& sequence, uint32_t node, uint32_t tokens) {
  for (uint32_t depth = 0; depth * block_tokens_[node] < tokens; ++depth) {
    const CachedBlock* parent = depth == 0 ? nullptr : sequence.cached_blocks.back();
    Use(*Below(sequence, node, parent, depth), sequence);
  }
}

std::vector<HeldExtent> PrefixCache::Join(Sequence& sequence, uint32_t node, bool shares) {
  LAMINA_CHECK(sequence.cached_blocks.empty() && kv_.TokensOf(sequence.request.id) == 0);
  std::vector<HeldExtent> slots;
  sequence.cached_tokens = 0;
  if (!Keeps(sequence)) {
    return slots;
  }
  sequence.cached_tokens = shares ? Find(sequence, node).tokens : 0;
  if (sequence.times_joined == 1 && sequence.committed.empty()) {
    sequence.cached_at_first = sequence.cached_tokens;
    stats_.first_asked += sequence.tokens();
    stats_.first_found += sequence.cached_tokens;
  }
  UseFound(sequence, node, sequence.cached_tokens);
  for (const CachedBlock* block : sequence.cached_blocks) {
    for (const HeldExtent& held : kv_.ShareKept(*block->slots, sequence.request.id, block->bare)) {
      slots.push_back(held);
    }
  }
  stats_.tokens_asked += sequence.tokens();
  stats_.tokens_found += sequence.cached_tokens;
  return slots;
}

std::vector<PrefixCache::Read> PrefixCache::ReadBack(Sequence& sequence, uint32_t away) {
  std::vector<Read> reads;
  const uint32_t block_tokens = block_tokens_[sequence.node];
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
  if (sequence.times_joined == 1 && sequence.committed.empty()) {
    sequence.cached_at_first = sequence.cached_tokens;
    stats_.first_found += away;
  }
  stats_.tokens_found += away;
  stats_.tokens_read += away;
  return reads;
}

void PrefixCache::Announce(Sequence& sequence) {
  if (!Keeps(sequence)) {
    return;
  }
  // Blocks behind the slots that it joins with are kept once they are stored.
  const uint32_t block_tokens = block_tokens_[sequence.node];
  const uint32_t depth_max =
      std::min(sequence.join_tokens, kv_.TokensOf(sequence.request.id)) / block_tokens;
  while (sequence.cached_blocks.size() < depth_max) {
    CachedBlock* const block = Next(sequence);
    if (block == nullptr || !block->has_slots) {
      Hold(sequence, block).maker = sequence.request.id;
    } else if (block->stored() && sequence.cached_tokens == 0) {
      Use(*block, sequence);  // It shares no slots, and computes the tokens anew.
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

void PrefixCache::Stored(Sequence& sequence, uint32_t tokens) {
  if (!Keeps(sequence)) {
    return;
  }
  for (const CachedBlock* block : sequence.cached_blocks) {
    __builtin_prefetch(block);  // Each may have been left alone since it was made.
  }
  const uint32_t block_tokens = block_tokens_[sequence.node];
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
    } else if (block->stored()) {
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
      if (block->parent != parent || block->node != sequence->node ||
          block->tokens != *TokensAt(*sequence, depth, block_tokens_[block->node])) {
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
