// SPDX-License-Identifier: Apache-2.0
//
// BlockFinder: which cached blocks have the first tokens of a sequence.
//
// A sequence on one node finds blocks of one node. One that is cut into spans goes on in each span
// on whichever node it likes, so that the blocks of a way may lie on several: those of a span on
// one, since spans begin where blocks do.
//
// Threading: one thread.   Determinism: same calls, same answers.
// Cost: O(tokens) for a sequence; each block on its way takes the logarithm of the number of blocks
// that follow the same tokens.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/core/block_copies.h"
#include "coordinator/core/block_tree.h"
#include "coordinator/core/cached_block.h"
#include "coordinator/core/sequence.h"

namespace lamina::core {

// Tokens of a sequence's block, where they lie; put together if the block begins in the prompt and
// ends behind it. Valid as long as this and the sequence are.
class TokensOfBlock {
 public:
  TokensOfBlock(const Sequence& sequence, uint32_t depth, uint32_t block_tokens);
  TokensOfBlock(const TokensOfBlock&) = delete;
  TokensOfBlock& operator=(const TokensOfBlock&) = delete;

  absl::Span<const TokenId> operator*() const { return tokens_; }

 private:
  CachedBlock::Tokens joined_;
  absl::Span<const TokenId> tokens_;
};

class BlockFinder {
 public:
  BlockFinder(const BlockTree& tree, const BlockCopies& copies) : tree_(tree), copies_(copies) {}

  struct Options {
    std::vector<uint32_t> block_tokens;  // [memory nodes]
    bool keeps = false;
    uint32_t found_max = UINT32_MAX;  // Tokens that a sequence finds at most.
    // Sequences are cut into spans of so many tokens, a multiple of those of a block, which all
    // nodes have alike. 0: they are not.
    uint32_t span_tokens = 0;
  };
  void Reset(Options options) { options_ = std::move(options); }

  uint32_t BlockTokensOn(uint32_t node) const { return options_.block_tokens[node]; }
  bool keeps() const { return options_.keeps; }
  uint32_t span_tokens() const { return options_.span_tokens; }
  bool cuts() const { return options_.span_tokens > 0; }
  // Whether blocks of the sequence are kept, and found.
  bool Keeps(const Sequence& sequence) const;
  // The block with the sequence's tokens at `depth`; null: there is none.
  CachedBlock* Below(const Sequence& sequence, uint32_t node, const CachedBlock* parent,
                     uint32_t depth) const;

  // What a sequence would find on a node.
  struct Found {
    uint32_t tokens = 0;   // Stored; the last token of a sequence is always computed.
    uint32_t pending = 0;  // Tokens behind these, being made by another sequence.
    uint32_t unused = 0;   // Tokens of `tokens` that count as unused until it joins.
    uint32_t away = 0;     // Tokens behind these, that can be read from the spill tier now.
    friend bool operator==(const Found&, const Found&) = default;
  };
  // Cut, in its first span.
  Found Find(const Sequence& sequence, uint32_t node) const;
  // What it would find on every node. Cut, on the way that goes on in each span where most of its
  // tokens are. Cost: O(nodes), and a look at those that keep its first block.
  std::vector<Found> FindOnNodes(const Sequence& sequence) const;

  // What a sequence that is cut finds of one span.
  struct FoundOfSpan {
    Found found;
    const CachedBlock* last = nullptr;  // The last one that is stored.
  };
  // On every node, in the span that begins with token `first`: behind the block `above`, null for
  // the first span. What is pending goes on in the spans behind.
  std::vector<FoundOfSpan> FindInSpan(const Sequence& sequence, const CachedBlock* above,
                                      uint32_t first) const;

 private:
  uint32_t DepthOf(const Sequence& sequence, uint32_t block_tokens) const;
  Found FindFrom(const Sequence& sequence, const CachedBlock* first) const;
  FoundOfSpan FollowSpan(const Sequence& sequence, const CachedBlock& first) const;
  uint32_t PendingFrom(const Sequence& sequence, const CachedBlock* block) const;
  std::vector<Found> FindOnWay(const Sequence& sequence) const;

  const BlockTree& tree_;
  const BlockCopies& copies_;
  Options options_;
};

}  // namespace lamina::core
