// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/blocks_below.h"

#include <utility>

#include "common/check.h"
#include "coordinator/core/cached_block.h"

namespace lamina::core {

bool BlocksBelow::ByTokens::operator()(const CachedBlock* a, const CachedBlock* b) const {
  return a->tokens < b->tokens;
}
bool BlocksBelow::ByTokens::operator()(const CachedBlock* a, absl::Span<const TokenId> b) const {
  return absl::MakeConstSpan(a->tokens) < b;
}
bool BlocksBelow::ByTokens::operator()(absl::Span<const TokenId> a, const CachedBlock* b) const {
  return a < absl::MakeConstSpan(b->tokens);
}

CachedBlock* BlocksBelow::Find(absl::Span<const TokenId> tokens) const {
  if (only_ != nullptr) {
    return absl::MakeConstSpan(only_->tokens) == tokens ? only_ : nullptr;
  }
  const auto found = several_.find(tokens);
  return found == several_.end() ? nullptr : *found;
}

void BlocksBelow::Insert(CachedBlock& block) {
  if (empty()) {
    only_ = &block;
    return;
  }
  if (only_ != nullptr) {
    several_.insert(std::exchange(only_, nullptr));
  }
  LAMINA_CHECK(several_.insert(&block).second);
}

void BlocksBelow::Erase(CachedBlock& block) {
  if (only_ == &block) {
    only_ = nullptr;
    return;
  }
  LAMINA_CHECK(only_ == nullptr && several_.erase(&block) == 1);
  if (several_.size() == 1) {
    only_ = *several_.begin();
    several_.clear();
  }
}

}  // namespace lamina::core
