// SPDX-License-Identifier: Apache-2.0
//
// BlocksBelow: the cached blocks directly below one (cached_block.h), found by their tokens.
//
// Most blocks have one below them, or none. These take no memory of their own: only where several
// continue the same tokens are they in a tree.
//
// Threading: one thread.   Determinism: same calls, same answers.
// Cost: a call compares the tokens of O(log blocks) of them.

#pragma once

#include <cstddef>

#include "absl/container/btree_set.h"
#include "absl/types/span.h"
#include "common/sampling_params.h"

namespace lamina::core {

struct CachedBlock;

class BlocksBelow {
 public:
  CachedBlock* Find(absl::Span<const TokenId> tokens) const;  // Null: there is none.
  void Insert(CachedBlock& block);                            // Requires: none has its tokens.
  void Erase(CachedBlock& block);                             // Requires: it is one of them.
  // The one whose tokens come first in their order. Requires: there is one.
  CachedBlock* first() const { return only_ != nullptr ? only_ : *several_.begin(); }
  size_t size() const { return only_ != nullptr ? 1 : several_.size(); }
  bool empty() const { return size() == 0; }

 private:
  struct ByTokens {
    using is_transparent = void;
    bool operator()(const CachedBlock* a, const CachedBlock* b) const;
    bool operator()(const CachedBlock* a, absl::Span<const TokenId> b) const;
    bool operator()(absl::Span<const TokenId> a, const CachedBlock* b) const;
  };

  CachedBlock* only_ = nullptr;
  absl::btree_set<CachedBlock*, ByTokens> several_;  // Empty where there is only one.
};

}  // namespace lamina::core
