// SPDX-License-Identifier: Apache-2.0
//
// BlocksBelow: the cached blocks directly below one (cached_block.h), found by their tokens and
// node. They are on the node of the one above, but where that one ends a span.
//
// Most blocks have one below them, or none. These take no memory of their own: only where several
// continue the same tokens are they in a tree.
//
// Threading: one thread.   Determinism: same calls, same answers.
// Cost: a call compares the tokens of O(log blocks) of them.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/sampling_params.h"

namespace lamina::core {

struct CachedBlock;

class BlocksBelow {
 public:
  // Null: there is none.
  CachedBlock* Find(absl::Span<const TokenId> tokens, uint32_t node) const;
  // The one with these tokens on the lowest of nodes. Null: there is none.
  CachedBlock* FindAny(absl::Span<const TokenId> tokens) const;
  // Calls `visit` with those that have these tokens, by node.
  void Visit(absl::Span<const TokenId> tokens,
             absl::FunctionRef<void(const CachedBlock&)> visit) const;
  void Insert(CachedBlock& block);  // Requires: none has its tokens on its node.
  void Erase(CachedBlock& block);   // Requires: it is one of them.
  // The one whose tokens come first in their order. Requires: there is one.
  CachedBlock* first() const { return only_ != nullptr ? only_ : *several_.begin(); }
  size_t size() const { return only_ != nullptr ? 1 : several_.size(); }
  bool empty() const { return size() == 0; }

 private:
  struct Key {
    absl::Span<const TokenId> tokens;
    uint32_t node = 0;
    bool operator<(const Key& other) const;
  };
  static Key KeyOf(const CachedBlock& block);
  struct ByKey {
    using is_transparent = void;
    bool operator()(const CachedBlock* a, const CachedBlock* b) const;
    bool operator()(const CachedBlock* a, const Key& b) const;
    bool operator()(const Key& a, const CachedBlock* b) const;
  };

  CachedBlock* only_ = nullptr;
  absl::btree_set<CachedBlock*, ByKey> several_;  // Empty where there is only one.
};

}  // namespace lamina::core
