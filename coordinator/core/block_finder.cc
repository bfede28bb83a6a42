// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/block_finder.h"

#include <algorithm>
#include <cstddef>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "common/check.h"
#include "coordinator/core/sequence_kv.h"

namespace lamina::core {

TokensOfBlock::TokensOfBlock(const Sequence& sequence, uint32_t depth, uint32_t block_tokens) {
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

bool BlockFinder::Keeps(const Sequence& sequence) const {
  const bool whole = sequence.held == nullptr || sequence.held->released == 0;
  return options_.keeps && !sequence.request.score && !sequence.request.lossy && whole;
}

CachedBlock* BlockFinder::Below(const Sequence& sequence, uint32_t node, const CachedBlock* parent,
                                uint32_t depth) const {
  const TokensOfBlock tokens(sequence, depth, BlockTokensOn(node));
  return parent == nullptr ? tree_.FirstOn(node, *tokens, sequence.request.cache_salt)
                           : parent->children.Find(*tokens, node);
}

// How many blocks of so many tokens a sequence may find.
uint32_t BlockFinder::DepthOf(const Sequence& sequence, uint32_t block_tokens) const {
  return std::min(sequence.tokens() - 1, options_.found_max) / block_tokens;
}

BlockFinder::Found BlockFinder::Find(const Sequence& sequence, uint32_t node) const {
  if (!Keeps(sequence) || DepthOf(sequence, BlockTokensOn(node)) == 0) {
    return {};
  }
  const CachedBlock* const first = Below(sequence, node, nullptr, 0);
  if (!cuts()) {
    return FindFrom(sequence, first);
  }
  return first == nullptr ? Found() : FollowSpan(sequence, *first).found;
}

std::vector<BlockFinder::Found> BlockFinder::FindOnNodes(const Sequence& sequence) const {
  std::vector<Found> found(tree_.nodes());
  if (!Keeps(sequence)) {
    return found;
  }
  if (cuts()) {
    return FindOnWay(sequence);
  }
  absl::InlinedVector<uint32_t, 2> sizes;
  for (const uint32_t tokens : options_.block_tokens) {
    if (!absl::c_linear_search(sizes, tokens)) {
      sizes.push_back(tokens);
    }
  }
  for (const uint32_t tokens : sizes) {
    if (DepthOf(sequence, tokens) > 0) {
      tree_.VisitFirsts(
          *TokensOfBlock(sequence, 0, tokens), sequence.request.cache_salt,
          [&](const CachedBlock& first) { found[first.node] = FindFrom(sequence, &first); });
    }
  }
  return found;
}

BlockFinder::Found BlockFinder::FindFrom(const Sequence& sequence, const CachedBlock* first) const {
  Found found;
  if (first == nullptr) {
    return found;
  }
  const uint32_t block_tokens = first->token_count();
  const uint32_t depth_max = DepthOf(sequence, block_tokens);
  const CachedBlock* block = first;
  for (uint32_t depth = 0; depth < depth_max; ++depth) {
    if (depth > 0) {
      block = block->children.Find(*TokensOfBlock(sequence, depth, block_tokens), block->node);
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

std::vector<BlockFinder::FoundOfSpan> BlockFinder::FindInSpan(const Sequence& sequence,
                                                              const CachedBlock* above,
                                                              uint32_t first) const {
  std::vector<FoundOfSpan> found(tree_.nodes());
  if (!Keeps(sequence) || found.empty()) {
    return found;
  }
  const uint32_t block_tokens = BlockTokensOn(0);
  const uint32_t depth = first / block_tokens;
  if (depth >= DepthOf(sequence, block_tokens)) {
    return found;
  }
  const TokensOfBlock tokens(sequence, depth, block_tokens);
  const auto follow = [&](const CachedBlock& block) {
    found[block.node] = FollowSpan(sequence, block);
  };
  if (above == nullptr) {
    tree_.VisitFirsts(*tokens, sequence.request.cache_salt, follow);
  } else {
    above->children.Visit(*tokens, follow);
  }
  return found;
}

// From the first block of a span on, on its node.
BlockFinder::FoundOfSpan BlockFinder::FollowSpan(const Sequence& sequence,
                                                 const CachedBlock& first) const {
  FoundOfSpan span;
  const uint32_t block_tokens = first.token_count();
  const uint32_t end =
      std::min(DepthOf(sequence, block_tokens), first.depth + options_.span_tokens / block_tokens);
  const CachedBlock* block = &first;
  for (uint32_t depth = first.depth; depth < end && block != nullptr;) {
    if (!block->stored()) {
      span.found.pending = PendingFrom(sequence, block);
      break;
    }
    span.found.tokens += block_tokens;
    span.found.unused += block->users == 0 ? block_tokens : 0;
    span.last = block;
    if (++depth < end) {
      block = block->children.Find(*TokensOfBlock(sequence, depth, block_tokens), first.node);
    }
  }
  return span;
}

// All below a pending block is made by the same sequence, so that there is one way at most.
uint32_t BlockFinder::PendingFrom(const Sequence& sequence, const CachedBlock* block) const {
  const uint32_t block_tokens = block->token_count();
  const uint32_t depth_max = DepthOf(sequence, block_tokens);
  uint32_t tokens = 0;
  uint32_t depth = block->depth;
  while (block != nullptr && block->has_slots) {
    tokens += block_tokens;
    if (++depth == depth_max) {
      break;
    }
    block = block->children.FindAny(*TokensOfBlock(sequence, depth, block_tokens));
  }
  return tokens;
}

std::vector<BlockFinder::Found> BlockFinder::FindOnWay(const Sequence& sequence) const {
  std::vector<Found> way(tree_.nodes());
  const CachedBlock* above = nullptr;
  for (uint32_t first = 0;; first += options_.span_tokens) {
    const std::vector<FoundOfSpan> spans = FindInSpan(sequence, above, first);
    const auto most = std::max_element(
        spans.begin(), spans.end(),
        [](const FoundOfSpan& a, const FoundOfSpan& b) { return a.found.tokens < b.found.tokens; });
    if (most == spans.end()) {
      return way;
    }
    Found& there = way[static_cast<size_t>(most - spans.begin())];
    there.tokens += most->found.tokens;
    there.unused += most->found.unused;
    there.pending += most->found.pending;
    if (most->found.tokens < options_.span_tokens) {
      return way;
    }
    above = most->last;
  }
}

}  // namespace lamina::core
