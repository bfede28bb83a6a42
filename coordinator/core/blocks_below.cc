// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/blocks_below.h"

#include <algorithm>
#include <compare>
#include <utility>

#include "common/check.h"
#include "coordinator/core/cached_block.h"

namespace lamina::core {

bool BlocksBelow::Key::operator<(const Key& other) const {
  const auto order = std::lexicographical_compare_three_way(
      tokens.begin(), tokens.end(), other.tokens.begin(), other.tokens.end());
  return order != 0 ? order < 0 : node < other.node;
}

BlocksBelow::Key BlocksBelow::KeyOf(const CachedBlock& block) {
  return {.tokens = block.tokens, .node = block.node};
}

bool BlocksBelow::ByKey::operator()(const CachedBlock* a, const CachedBlock* b) const {
  return KeyOf(*a) < KeyOf(*b);
}
bool BlocksBelow::ByKey::operator()(const CachedBlock* a, const Key& b) const {
  return KeyOf(*a) < b;
}
bool BlocksBelow::ByKey::operator()(const Key& a, const CachedBlock* b) const {
  return a < KeyOf(*b);
}

CachedBlock* BlocksBelow::Find(absl::Span<const TokenId> tokens, uint32_t node) const {
  if (only_ != nullptr) {
    return only_->node == node && absl::MakeConstSpan(only_->tokens) == tokens ? only_ : nullptr;
  }
  const auto found = several_.find(Key{.tokens = tokens, .node = node});
  return found == several_.end() ? nullptr : *found;
}

CachedBlock* BlocksBelow::FindAny(absl::Span<const TokenId> tokens) const {
  if (only_ != nullptr) {
    return absl::MakeConstSpan(only_->tokens) == tokens ? only_ : nullptr;
  }
  const auto found = several_.lower_bound(Key{.tokens = tokens});
  const bool there = found != several_.end() && absl::MakeConstSpan((*found)->tokens) == tokens;
  return there ? *found : nullptr;
}

void BlocksBelow::Visit(absl::Span<const TokenId> tokens,
                        absl::FunctionRef<void(const CachedBlock&)> visit) const {
  if (only_ != nullptr) {
    if (absl::MakeConstSpan(only_->tokens) == tokens) {
      visit(*only_);
    }
    return;
  }
  for (auto block = several_.lower_bound(Key{.tokens = tokens});
       block != several_.end() && absl::MakeConstSpan((*block)->tokens) == tokens; ++block) {
    visit(**block);
  }
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
